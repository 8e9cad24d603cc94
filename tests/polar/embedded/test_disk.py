"""A disk that is all but full is said before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.embedded import disk
from topics.types.errors import NotReady


def test_room_is_told_of_folders_that_are_not_there_yet(tmp_path: Path) -> None:
    assert disk.free(tmp_path / "a" / "b") == pytest.approx(disk.free(tmp_path), rel=0.1)
    disk.require(tmp_path / "a" / "b")


def test_a_full_disk_is_a_sentence_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "NEEDED", 2**62)
    with pytest.raises(
        NotReady, match=r"only \d+ MB are free on the disk of .*; make room, or choose another data folder"
    ):
        disk.require(tmp_path)
