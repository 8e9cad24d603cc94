"""Secrets are written whole and for their owner alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from topics.environment import private_files


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_create_makes_a_file_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "secret"
    private_files.create(path, "first")
    private_files.create(path, "second")
    assert path.read_text() == "first"
    assert mode(path) == 0o600


@pytest.mark.parametrize("expected", [0o600, 0o640])
def test_replace_writes_the_mode_whatever_the_file_had_before(tmp_path: Path, expected: int) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o644)
    private_files.replace(path, "text", expected)
    assert path.read_text() == "text"
    assert mode(path) == expected
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    private_files.replace(path, "old")
    with pytest.raises(UnicodeEncodeError):
        private_files.replace(path, "new \udc80")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
