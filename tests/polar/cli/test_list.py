"""`polar list` of rows that a coordinator would have written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.polar.cli.commands import polar, rows, write
from tests.polar.show.recording import PLAN, TASK
from topics.environment.settings import Settings
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, SessionState, Status, TaskState

pytestmark = pytest.mark.contract


def session(task_id: str, index: int, phase: Phase = Phase.ENDED, **more: Any) -> SessionState:
    return SessionState(f"{task_id}.{index}", task_id, index, phase, 0, **more)


@pytest.fixture
def _filled(settings: Settings) -> None:
    """Task `a` has ended, after `b` began, which still runs."""
    error = SessionError("run", Kind.AGENT, "exit_code", "it ended\nwith 3")
    write(
        settings,
        *rows(
            replace(TASK, task_id="b", num_samples=3, plan=replace(PLAN, run="night", harness="pi")),
            session("b", 0, status=Status.COMPLETED, reward=1.0),
            session("b", 1, Phase.RUNNING),
        ),
    )
    write(
        settings,
        *rows(
            TaskState("a", 2, "hash", plan=PLAN),
            session("a", 0, status=Status.COMPLETED, reward=0.5),
            session("a", 1, status=Status.FAILED, error=error),
        ),
    )


def listed(*options: str) -> list[dict[str, Any]]:
    code, stdout, _ = polar("list", "--format", "json", *options)
    assert code == 0
    found: list[dict[str, Any]] = json.loads(stdout)
    return found


@pytest.mark.usefixtures("_filled")
def test_unfinished_tasks_come_first_and_each_filter_selects() -> None:
    found = listed()
    assert [(one["task_id"], one["is_over"]) for one in found] == [("b", False), ("a", True)]
    assert (found[0]["ended"], found[0]["num_samples"], found[0]["phases"]) == (1, 3, {"running": 1})
    assert [one["task_id"] for one in listed("--run", "night")] == ["b"]
    assert [one["task_id"] for one in listed("--harness", "shell")] == ["a"]
    assert [(one["task_id"], one["ended"]) for one in listed("--status", "failed")] == [("a", 2)]
    assert listed("--run", "day") == []
    code, stdout, stderr = polar("list", "--limit", "1")
    assert (code, stderr) == (0, "polar: 1 more; --limit shows them\n")
    assert [line.split()[0] for line in stdout.splitlines()[2:]] == ["b"]


@pytest.mark.usefixtures("_filled")
def test_sessions_are_a_line_each() -> None:
    found = listed("--sessions")
    assert found[0]["session_id"] == "b.1"
    assert {one["session_id"] for one in found} == {"a.0", "a.1", "b.0", "b.1"}
    assert [one["session_id"] for one in listed("--sessions", "--status", "RUNNING")] == ["b.1"]
    _, stdout, _ = polar("list", "--sessions", "--status", "FAILED")
    (line,) = stdout.splitlines()[2:]
    assert line.split()[:4] == ["a.1", "–", "shell", "FAILED"]
    assert line.rstrip().endswith("run agent/exit_code: it ended with 3")


@pytest.mark.usefixtures("settings")
def test_an_unknown_status_is_an_error_that_names_them_all() -> None:
    code, _, stderr = polar("list", "--status", "done")
    assert code == 2
    assert "--status: expected one of COMPLETED, FAILED, TIMED_OUT, CANCELLED, unopened, queued" in stderr
