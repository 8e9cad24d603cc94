"""Files that programs of a session may have replaced by something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.runtimes import session_folder
from consumers.runtimes.base import ExecResult


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_folder_in_the_place_of_a_file_keeps_no_descriptor_open(tmp_path: Path) -> None:
    """Otherwise each session could take some of the worker's, until it has none."""
    ended = ExecResult(exit_code=0, timed_out=False, duration_s=0.0, log=tmp_path, tail="its end")
    before = open_descriptors()
    with pytest.raises(IsADirectoryError):
        session_folder.read(tmp_path, 10)
    assert ended.output() == b"its end"
    assert open_descriptors() == before
