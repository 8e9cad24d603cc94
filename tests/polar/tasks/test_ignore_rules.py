"""Files that a task's `.harborignore` names don't become part of an upload."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from polar.tasks.checking import Requests, requests
from polar.tasks.harbor_rules import TESTS
from polar.tasks.task_sets import Member
from tests.polar.tasks.writing import AGENT, mapped_task, read
from topics.types.errors import NotReadyError
from topics.types.task import TaskRequest
from topics.types.uploads import PrepareAction

IMAGE: dict[str, Any] = {"environment": {"docker_image": "a:1"}}


def made(folder: Path, **files: str) -> Path:
    """Files of a task, by path with `__` for `/`."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def ignored(folder: Path, patterns: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".harborignore").write_text(patterns)


def uploads(actions: list[PrepareAction] | None, folder: Path) -> dict[str, str]:
    """The targets of uploads, by their sources."""
    return {
        Path(one.source).relative_to(folder).as_posix(): str(one.target)
        for one in actions or ()
        if one.source is not None
    }


def of_tests(folder: Path) -> dict[str, str]:
    request = mapped_task(folder, IMAGE, AGENT).request()
    assert isinstance(request, TaskRequest), request
    return uploads(request.runtime.eval_prepare, folder / "tests")


def test_each_kept_file_and_folder_is_uploaded(tmp_path: Path) -> None:
    made(tmp_path, tests__a_log="", tests__deep__b_log="", tests__deep__c="", tests__whole__d="", tests__venv__e="")
    ignored(tmp_path / "tests", "*_log\nvenv/\n")
    assert of_tests(tmp_path) == {
        "deep/c": "/tests/deep/c",
        "test.sh": "/tests/test.sh",
        "whole": "/tests/whole",
    }


def test_rules_of_inner_folders_win_and_nothing_in_a_folder_that_is_left_out_is_kept(tmp_path: Path) -> None:
    made(tmp_path, tests__deep__a_log="", tests__deep__b="", tests__venv__c="")
    ignored(tmp_path / "tests", "*_log\nvenv\n!venv/c\n")
    ignored(tmp_path / "tests" / "deep", "!a_log\n/b\n")
    ignored(tmp_path / "tests" / "venv", "!*\n")
    assert of_tests(tmp_path) == {"deep/a_log": "/tests/deep/a_log", "test.sh": "/tests/test.sh"}


def test_without_rules_a_folder_is_one_upload(tmp_path: Path) -> None:
    ignored(tmp_path, "*")
    assert of_tests(tmp_path) == {".": "/tests"}


@pytest.mark.parametrize(
    ("patterns", "words"),
    [("*.sh", "tests/test.sh is left out by .harborignore"), ("x", "is a symbolic link"), ("!", "pattern")],
)
def test_what_cannot_be_uploaded_refuses_the_task(tmp_path: Path, patterns: str, words: str) -> None:
    ignored(tmp_path / "tests", patterns)
    (tmp_path / "tests" / "link").symlink_to(tmp_path)
    refusal = mapped_task(tmp_path, IMAGE, AGENT).request()
    assert not isinstance(refusal, TaskRequest)
    assert refusal.name == TESTS
    assert words in refusal.becomes


def test_tests_that_cannot_be_uploaded_refuse_a_separate_verifier(tmp_path: Path) -> None:
    ignored(tmp_path / "tests", "*")
    found = mapped_task(tmp_path, IMAGE | {"verifier": {"environment_mode": "separate"}}, AGENT)
    assert [(one.name, one.becomes) for one in found.refusals] == [
        ("verifier.environment_mode", "tests/test.sh is left out by .harborignore; change its patterns")
    ]


def test_a_link_that_is_left_out_refuses_nothing(tmp_path: Path) -> None:
    ignored(tmp_path / "tests", "link")
    (tmp_path / "tests" / "link").symlink_to(tmp_path)
    assert of_tests(tmp_path) == {"test.sh": "/tests/test.sh"}


def test_a_solution_has_rules_as_well(tmp_path: Path) -> None:
    ignored(tmp_path / "solution", "big")
    made(tmp_path, solution__big="")
    task = read(tmp_path, IMAGE, solution__solve_sh="true")
    found = requests(Member("t", tmp_path), task, AGENT, {}, run="r")
    assert isinstance(found, Requests), found
    assert uploads(found.solution.runtime.prepare, tmp_path / "solution") == {"solve.sh": "/solution/solve.sh"}


def test_without_the_package_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pathspec", None)
    ignored(tmp_path / "tests", "x")
    with pytest.raises(NotReadyError, match="need the package pathspec; install it"):
        of_tests(tmp_path)
