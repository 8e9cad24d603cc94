"""Sessions of the tasks in examples/swe, in cells and without a system: prepared, worked on by a command, and evaluated."""

from __future__ import annotations

import shutil
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumers.evaluators.base import Case, Verdict
from consumers.runtimes.base import Exec, Labels, RuntimeBackend
from consumers.runtimes.prepare import prepare, steps
from polar.tasks import mapping, task_sets
from tests.uploading import submitted
from topics.environment import registry
from topics.environment.blobs import FolderBlobs
from topics.types.session import Status
from topics.types.task import TaskRequest

ROOT = Path(__file__).parents[2] / "examples" / "swe"
TASKS = ROOT / "tasks"
NAMES = sorted(folder.name for folder in TASKS.iterdir())
AGENT = {"agent": {"harness": "shell", "custom_shell": {"command": "true"}}}
COMMAND_S = 300.0
RUNS = {"solve.sh": 1.0, "breaking.sh": 0.0, "": 0.0}
"""The reward of a run, by the file of a task's `solution/` that it is; an empty name: it does nothing."""
PROGRAMS = {"go": ("go", "/usr/local/go/bin/go"), "c": ("gcc",)}
"""Programs of a language, one of which must be there; Polar's own environment has Python and node."""


def imported(name: str, template: str) -> TaskRequest:
    """A task as `polar tasks import` makes it with a template of examples/swe."""
    base: Mapping[str, Any] = yaml.safe_load((ROOT / template).read_text()) | AGENT
    (member,) = [one for one in task_sets.members(TASKS, None) if one.name == name]
    request = mapping.mapped(member, member.read(), base).request()
    assert isinstance(request, TaskRequest), request
    return request


def solution(name: str, file: str = "solve.sh") -> str:
    """The command of a reference solution, or of the one that breaks a test (`breaking.sh`)."""
    return (TASKS / name / "solution" / file).read_text()


def language(name: str) -> str:
    """The language of a task."""
    found: str = tomllib.loads((TASKS / name / "task.toml").read_text())["metadata"]["language"]
    return found


def skip_without_programs(name: str) -> None:
    """Skip the test if this machine lacks what the task's language needs."""
    programs = PROGRAMS.get(language(name))
    if programs is not None and not any(map(shutil.which, programs)):
        pytest.skip(f"{name} needs one of {programs}")


async def evaluated(backend: RuntimeBackend, folder: Path, task: TaskRequest, command: str) -> Verdict:
    """The verdict after a run of `command`, by the steps that the stages take. `folder`: for the uploads."""
    blobs = FolderBlobs(folder / "blobs")
    task = submitted(task, blobs)
    evaluator = registry.load(registry.Kind.EVALUATOR, task.evaluator.strategy)(task.evaluator.config)
    made = await backend.create(
        Labels("polar", f"{task.task_id}.0", 1, claim()), task.runtime, steps(task.runtime.prepare, blobs)
    )
    try:
        if hasattr(evaluator, "keep"):
            await evaluator.keep(made)
        run = await backend.attach(made.handle, claim(), task.runtime)
        ended = await run.exec(Exec(command, timeout_s=COMMAND_S))
        assert ended.exit_code == 0, ended.tail
        fresh = await backend.attach(made.handle, claim(), task.runtime, fresh=True)
        if hasattr(evaluator, "restore") and (reason := await evaluator.restore(fresh)) is not None:
            return Verdict(0.0, reason=reason)
        await prepare(fresh, task.runtime.eval_prepare or (), blobs, field="runtime.eval_prepare")
        case = Case(fresh, f"{task.task_id}.0", Status.COMPLETED, 0, None, task.evaluator.env, budget_s=COMMAND_S)
        verdict: Verdict = await evaluator.evaluate(case)
        return verdict
    finally:
        await made.remove()


def claim() -> str:
    return f"claim-{uuid.uuid4().hex}"
