"""What a check runs for a task, and what the two rewards say about the task. Pure.

A check is two TaskRequests of one sample each. One runs the reference solution, and its reward must be 1. One does nothing, and its reward
must be 0. Both are of `mode: eval`, so no trainer of the default topic reads them. Invariant: only the request that runs the solution
has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from polar.tasks import ignore_rules
from polar.tasks.harbor_folder import HarborTask
from polar.tasks.harbor_mapping import Finding, Mapped, solution_env
from polar.tasks.mapping import mapped
from polar.tasks.row_options import RowOptions
from polar.tasks.row_rules import RowFormat, recognised
from polar.tasks.rows import Row
from polar.tasks.task_sets import Found, Task
from topics.types.errors import InputError
from topics.types.session import SessionState, Status
from topics.types.task import TaskRequest, body_hash, parse

FOLDER = "solution"
PROGRAM = "solve.sh"
SCRIPT = f"{FOLDER}/{PROGRAM}"
IN_IMAGE = "/solution"
"""The folder, the way to start the script and the variables are those of Harbor's own reference agent (harbor, agents/oracle.py)."""
VARIABLES = {"DEBIAN_FRONTEND": "noninteractive"}
PATCH = "SOLUTION_PATCH"
"""The variable that holds a row's solution."""
APPLY = f'printf "%s\\n" "${PATCH}" | git apply --whitespace=nowarn'
NO_PATCH = (RowFormat.R2E_GYM, RowFormat.NEMO_GYM)
"""Their rows have no solution as a patch."""
SET_BY_CHECK = ("agent", "num_samples", "early_stop", "callback_url", "output_topic", "mode", "run")
"""Fields of a template that concern an agent's rollouts, and are left out of a check."""
ID_CHARS = 128
HASH_CHARS = 12


class Verdict(StrEnum):
    """What a check found out about a task."""

    USABLE = "usable"
    SOLUTION_FAILS = "solution_fails"
    """The reward of the reference solution isn't 1."""
    NOTHING_PASSES = "nothing_passes"
    """The reward of doing nothing isn't 0."""
    NO_SOLUTION = "no_solution"
    """The task has no solution/solve.sh, or its row no `patch`, and there is no command in its place; nothing was run."""
    ERROR = "error"
    """There is no reward, or the task can't be run."""


@dataclass(frozen=True)
class Requests:
    """What is run for a task; the ids are the task's own until `identified`."""

    solution: TaskRequest
    nothing: TaskRequest


@dataclass(frozen=True)
class Attempt:
    """How one of a check's sessions ended."""

    session_id: str
    status: Status | None
    reward: float | None
    reason: str | None
    """The evaluator's words and the session's error; None: there are none."""

    @classmethod
    def of(cls, row: SessionState) -> Attempt:
        words = []
        if (error := row.error) is not None and error != row.evaluation_error:
            words.append(f"{error.stage} {error.kind.value}/{error.code}: {error.message}")
        if row.reward_reason is not None:
            words.append(row.reward_reason)
        if not words and row.status not in (None, Status.COMPLETED):
            words.append(str(row.status))
        return cls(row.session_id, row.status, row.reward, "; ".join(words) or None)


@dataclass(frozen=True)
class CheckedTask:
    """A task with its verdict."""

    member: Found
    verdict: Verdict
    reason: str | None = None
    """Why the task isn't usable; of a usable one, what went wrong all the same."""
    solution: Attempt | None = None
    nothing: Attempt | None = None

    @property
    def session_id(self) -> str | None:
        """The session that decided that the task isn't usable."""
        for attempt, expected in ((self.solution, 1.0), (self.nothing, 0.0)):
            if attempt is not None and attempt.reward != expected:
                return attempt.session_id
        return None


def requests(
    member: Found,
    task: Task,
    template: Mapping[str, Any],
    variables: Mapping[str, str],
    *,
    run: str,
    solve: str | None = None,
    options: RowOptions | None = None,
) -> Requests | CheckedTask:
    """What to run for a task, or its verdict if nothing can be run.

    `solve`: a command for `bash -c` in the workspace, which solves the task with its solution or without. The folder FOLDER is there if the
    task has it, and a row's patch is in the variable PATCH.
    """
    if solve is None and (lack := _lack(task)):
        return CheckedTask(member, Verdict.NO_SOLUTION, f"{lack}; give --solve COMMAND, which solves it")
    base = {name: value for name, value in template.items() if name not in SET_BY_CHECK}
    try:
        overrides = _overrides(run, "true")
        found = mapped(member, task, base | overrides, variables, options)
        # What the task gives its agent, such as MCP servers, no check needs, and the shell refuses it.
        plain = replace(found, body=found.body | overrides)
        nothing = plain.request()
        if isinstance(nothing, Finding):
            return CheckedTask(member, Verdict.ERROR, "; ".join(map(_words, plain.refusals or (nothing,))))
        if isinstance(task, Row):
            return Requests(_patched(task, plain, run, solve), nothing)
        return Requests(_scripted(task, plain, nothing, variables, run, solve), nothing)
    except InputError as error:
        return CheckedTask(member, Verdict.ERROR, str(error))


def _lack(task: Task) -> str | None:
    """Why the task has no solution; None: it has one."""
    if not isinstance(task, Row):
        return None if task.has(SCRIPT) else f"the task has no {SCRIPT}"
    if _patch(task) is not None:
        return None
    if (form := recognised(task.config)) in NO_PATCH:
        return f"rows of {form} have no solution as a patch"
    return "the row has no field `patch` with its solution"


def _patch(row: Row) -> str | None:
    """A row's solution; None: it has none."""
    patch = row.config.get("patch")
    return patch if isinstance(patch, str) and recognised(row.config) not in NO_PATCH else None


def _patched(row: Row, plain: Mapped, run: str, solve: str | None) -> TaskRequest:
    """The request that solves a row, by its patch unless there is `solve`. Raises InputError."""
    patch = _patch(row)
    # SWE-smith's patch brings the bug.
    command = APPLY + (" -R" if recognised(row.config) is RowFormat.SWE_SMITH else "")
    return parse(plain.body | _overrides(run, solve or command, {} if patch is None else {PATCH: patch}))


def _scripted(
    task: HarborTask, plain: Mapped, nothing: TaskRequest, variables: Mapping[str, str], run: str, solve: str | None
) -> TaskRequest:
    """The request that solves a Harbor task, by its script unless there is `solve`. Raises InputError."""
    target = FOLDER if nothing.runtime.image is None else IN_IMAGE
    try:
        actions = ignore_rules.of_task(task, FOLDER, PROGRAM, target) if task.has(FOLDER) else []
    except InputError:
        raise
    except ValueError as error:
        raise InputError(FOLDER, str(task.folder), str(error)) from None
    runtime = plain.body.get("runtime") or {}
    script = f"{target}/{PROGRAM}"
    command = solve or f"chmod +x {script} && {script}"
    changes = _overrides(run, command, VARIABLES | solution_env(task, variables))
    changes["runtime"] = {**runtime, "prepare": [*runtime.get("prepare", ()), *actions]}
    return parse(plain.body | changes)


def _overrides(run: str, command: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    shell = {"command": command, "env": dict(env or {})}
    return {"agent": {"harness": "shell", "custom_shell": shell}, "num_samples": 1, "mode": "eval", "run": run}


def _words(finding: Finding) -> str:
    return f"{finding.name}: {finding.becomes}"


def identified(request: TaskRequest, kind: str) -> TaskRequest:
    """The request under an id that its body decides: the same check of the same files in the same run is the same task, and runs once."""
    digest = body_hash(request.canonical())[:HASH_CHARS]
    stem = request.task_id[: ID_CHARS - len(kind) - HASH_CHARS - 2]
    return request.model_copy(update={"task_id": f"{stem}-{kind}-{digest}"})


def checked(member: Found, solution: Attempt, nothing: Attempt) -> CheckedTask:
    """The verdict on a task whose sessions have both ended."""
    for what, attempt in (("solution", solution), ("nothing", nothing)):
        if attempt.reward is None:
            return CheckedTask(member, Verdict.ERROR, f"{what}: no reward: {attempt.reason}", solution, nothing)
    if solution.reward != 1:
        return CheckedTask(member, Verdict.SOLUTION_FAILS, _differs(solution, 1), solution, nothing)
    if nothing.reward != 0:
        return CheckedTask(member, Verdict.NOTHING_PASSES, _differs(nothing, 0), solution, nothing)
    return CheckedTask(member, Verdict.USABLE, _flaws(solution, nothing), solution, nothing)


def _flaws(solution: Attempt, nothing: Attempt) -> str | None:
    """Failures in the sessions of a usable task. The reason for the 0 of the session that does nothing isn't a failure."""
    words = [] if solution.reason is None else [f"solution: {solution.reason}"]
    if nothing.reason is not None and nothing.status is not Status.COMPLETED:
        words.append(f"nothing: {nothing.reason}")
    return "; ".join(words) or None


def _differs(attempt: Attempt, expected: int) -> str:
    words = f"reward {attempt.reward:g}, not {expected}"
    return words if attempt.reason is None else f"{words}: {attempt.reason}"
