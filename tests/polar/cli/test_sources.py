"""What a task uploads is named relative to the file that the task stands in."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.cli.documents import anchored
from topics.types.task import TaskRequest, parse


def task(*sources: str) -> TaskRequest:
    actions: list[dict[str, str]] = [{"type": "upload_dir", "source": source, "target": "."} for source in sources]
    actions.append({"type": "exec", "command": "git init"})
    agent = {"harness": "shell", "custom_shell": {"command": "true"}}
    return parse({"task_id": "t", "instruction": "mend it", "agent": agent, "runtime": {"prepare": actions}})


def sources(request: TaskRequest) -> list[str | None]:
    return [action.source for action in request.runtime.prepare]


def test_a_relative_source_is_taken_from_the_folder_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = task("repo", "/elsewhere/repo")
    assert sources(anchored(request, "tasks/one.yaml")) == [str(tmp_path / "tasks" / "repo"), "/elsewhere/repo", None]
    assert sources(anchored(request, "-")) == [str(tmp_path / "repo"), "/elsewhere/repo", None]


def test_nothing_else_of_the_task_changes() -> None:
    request = task()
    assert anchored(request, "tasks/one.yaml") == request
