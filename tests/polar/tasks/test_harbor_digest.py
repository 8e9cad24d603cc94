"""The digest of a task is that of the files that Harbor publishes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from polar.tasks.harbor_digest import digest
from polar.tasks.harbor_folder import read_task
from tests.polar.tasks.writing import toml, write
from topics.types.errors import InputError


@pytest.mark.parametrize("name", ["tests", "environment", "solution", "steps"])
def test_a_folder_that_a_link_puts_elsewhere_is_not_listed(tmp_path: Path, name: str) -> None:
    """The other folder is empty: only a listing could tell."""
    (tmp_path / "outside").mkdir()
    folder = write(tmp_path / "task", solution__solve_sh="true", steps__1__solve_sh="true")
    task = read_task(folder)
    (folder / name).rename(tmp_path / "moved")
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="leads out of"):
        digest(folder)
    assert task.has(name)


def test_a_digest_covers_what_a_task_is_made_of(tmp_path: Path) -> None:
    """The digest is the one that the real set `textcraft-synth` records for such files: SHA-256 over names and hashes, in order."""
    folder = write(tmp_path, toml({"schema_version": "1.4"}))
    first = digest(folder)
    assert re.fullmatch("sha256:[0-9a-f]{64}", first)
    write(folder / "tests/__pycache__", "")
    (folder / "notes.txt").write_text("not part of a task")
    assert digest(folder) == first
    (folder / "tests/test.sh").write_text("exit 1\n")
    assert digest(folder) != first


def test_a_file_name_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "tests" / os.fsdecode(b"caf\xe9.txt")).write_text("")
    with pytest.raises(InputError, match="its name isn't UTF-8; rename it") as error:
        digest(folder)
    assert error.value.value == r"'tests/caf\udce9.txt'"


def test_ignored_files_are_not_covered(tmp_path: Path) -> None:
    """The digests are those of Harbor's own `Packager` (0.26) for these files."""
    folder = write(
        tmp_path, "", tests__data__a_sh="", tests__data__b_md="", solution__solve_sh="", environment__x_md=""
    )
    for name in ("tests", "environment"):
        (folder / name / ".harborignore").write_text("*.md\n")
    (folder / ".harborignore").write_text("*")
    assert digest(folder) == "sha256:4275f60c255cb66ddc8cb69a1a2379a665cbdab236896c664d10448850862ffb"
    (folder / ".gitignore").write_text("data/\n!a.sh\n/solution/*.sh\n")
    assert digest(folder) == "sha256:2da52404afbed3071675c75b0c055f842ae0c3ffa8a0389f56e855733e3fba9d"


def test_rules_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "tests" / ".harborignore").write_text("!")
    with pytest.raises(InputError, match="can't be read"):
        digest(folder)
