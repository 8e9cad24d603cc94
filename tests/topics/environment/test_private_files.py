"""Secrets are written whole and for their owner alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_disks import fill, needs_root, small_disk
from topics.environment import private_files


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_create_makes_a_file_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "secret"
    private_files.create(path, "first")
    private_files.create(path, "second")
    assert path.read_text() == "first"
    assert mode(path) == 0o600


def test_a_new_folder_is_its_owners_and_an_existing_one_stays_as_it_is(tmp_path: Path) -> None:
    new, shared = tmp_path / "above" / "data", tmp_path / "shared"
    private_files.make_folder(new)
    assert (mode(new), private_files.open_to_others(new)) == (0o700, None)
    shared.mkdir(mode=0o755)
    private_files.make_folder(shared)
    assert mode(shared) == 0o755
    assert private_files.open_to_others(shared) == f"other users can enter {shared} (mode 0755); chmod 700 {shared}"


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


@pytest.mark.contract
@needs_root
def test_a_file_that_a_full_disk_cut_off_is_not_made(tmp_path: Path) -> None:
    """Otherwise an empty keys file would count as one that is there."""
    with small_disk(tmp_path / "disk", 1) as disk:
        made, text = disk / "keys.json", "{}" * 1000
        fill(disk / "ballast")
        with pytest.raises(OSError, match="No space left") as failed:
            private_files.create(made, text)
        assert str(made) in str(failed.value)
        assert not made.exists()
        (disk / "ballast").unlink()
        private_files.create(made, text)
        assert made.read_text() == text
