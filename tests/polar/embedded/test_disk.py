"""A disk that is almost full is reported before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.embedded import disk
from topics.types.errors import NotReadyError


def test_free_space_is_known_for_folders_that_do_not_exist_yet(tmp_path: Path) -> None:
    assert disk.free(tmp_path / "a" / "b") == pytest.approx(disk.free(tmp_path), rel=0.1)
    disk.require(tmp_path / "a" / "b")


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "NEEDED", 2**62)
    with pytest.raises(
        NotReadyError, match=r"only \d+ MB are free on the disk of .*; make room, or choose another data folder"
    ):
        disk.require(tmp_path)
