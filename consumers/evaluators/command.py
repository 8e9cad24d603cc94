"""A task's command, run in the workspace that the run left; and whose fault it is if the command can't run.

The agent had the workspace before, so what its files can cause is its failure: ObstructedError, for a reward of 0.0. Two failures aren't
the agent's, and leave no reward:

- The machine's: a SandboxError, after which the evaluation is tried again.
- The task's: EvaluationError, if the command couldn't have run in the prepared base either. That is known only if it begins with the bare
  name of a program, no folder of PATH has this program, and no folder of PATH is one that the agent could write to.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from consumers.evaluators import settings
from consumers.evaluators.base import Case, EvaluationError
from consumers.runtimes.base import Exec, ExecResult, Runtime, SandboxError, raise_fault
from topics.types.errors import InputError

OUTPUT = "evaluation_output"
"""The artifact with the command's output."""
MARGIN_S = 10.0
"""The command ends so long before the evaluation's budget, or a tenth of it if that is longer: enough to kill it (2 s of grace) and to read
what it wrote. A command that could use up the budget would leave no reward."""
CONTROL_S = 10.0
"""Limit for asking bash whether it finds a program."""

_CANNOT_RUN = (126, 127)
_PROGRAM = re.compile(r"\s*([A-Za-z0-9_.+-]+)(?=\s|$)")
"""The command's first word, if it is the bare name of a program: no path, no quotes, no assignment."""
_LOOK_UP = 'type -- "$1" >/dev/null 2>&1; echo "$? $PATH"'


class ObstructedError(Exception):
    """Files of the run are in the way of the evaluation; the message says how, without a subject."""


@dataclass(frozen=True)
class Command:
    """A command of a task's config, for `bash -c` with pipefail."""

    setting: str
    """Its name in the config; also the code of the error for a program that was never there."""
    text: str
    timeout_s: float | None

    def __post_init__(self) -> None:
        """Raises InputError for a text that is blank, or that no argument can hold."""
        if not self.text.strip() or "\0" in self.text:
            raise settings.refused(self.setting, self.text, "must be a command, as text without zero bytes")

    def limit_s(self, budget_s: float | None) -> float | None:
        """How long the command may take; None: without limit."""
        if budget_s is None:
            return self.timeout_s
        longest = max(budget_s - max(budget_s / 10, MARGIN_S), budget_s / 2)
        return longest if self.timeout_s is None else min(self.timeout_s, longest)

    async def run(self, case: Case, variables: Mapping[str, str], text: str | None = None) -> Ended:
        """Run it to its end. `variables` come on top of the evaluator's; `text`: the command with its placeholders replaced.

        Raises ObstructedError, EvaluationError, SandboxError.
        """
        runtime, env = case.runtime, {**case.env, **variables}
        limit_s = self.limit_s(case.budget_s)
        try:
            with _obstructions():
                result = await runtime.exec(
                    Exec(text or self.text, env=env, log="evaluation.log", timeout_s=limit_s, has_gpus=True)
                )
        except SandboxError as error:
            if error.code != "not_started" or not await _is_agents_doing(runtime, env):
                raise
            raise ObstructedError(f"couldn't be started in the workspace that the run left: {error}") from error
        output = await asyncio.to_thread(result.output)
        if result.exit_code in _CANNOT_RUN and (missing := await _missing_program(runtime, self.text, env)):
            raise EvaluationError(
                self.setting,
                f"evaluator.config.{self.setting} {self.text!r} can't be run: no folder of PATH has the program "
                f"{missing!r}; install it on the workers or in the image, or name it by its path ({result.output_end})",
                {OUTPUT: output},
            )
        return Ended(result, output, limit_s)


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    result: ExecResult
    output: bytes
    limit_s: float | None

    def failure(self, subject: str) -> str | None:
        """Why the command failed, in words; None for exit code 0. `subject`: "the test command"."""
        exceeded = f" {self.result.exceeded}" if self.result.exceeded else ""
        if self.result.exit_code is None:
            why = exceeded or f" It didn't end within timeout_s = {self.limit_s or 0:g} s."
            return f"{subject} was stopped.{why}"
        if self.result.exit_code == 0:
            return None
        return f"{subject} ended with exit code {self.result.exit_code}{'.' if exceeded else ''}{exceeded}"


async def new_file(runtime: Runtime, name: str | PurePosixPath) -> PurePosixPath:
    """The path of a new, empty file, in a folder that is new as well and has a name that nobody knew before. Raises ObstructedError."""
    path = runtime.home / f"polar-report-{secrets.token_hex(16)}" / name
    with _obstructions():
        await runtime.write_file(path, b"")
    return path


@contextmanager
def _obstructions() -> Iterator[None]:
    """The settings are valid, so files of the run are in the way: a folder that is gone, or a link out of the sandbox."""
    try:
        yield
    except (InputError, OSError) as error:
        raise_fault(error)
        raise ObstructedError(f"couldn't be run on what the run left: {error}") from error


async def _is_agents_doing(runtime: Runtime, env: Mapping[str, str]) -> bool:
    """Whether files of the run can be why no program starts in the workspace: its folder, or a bash of the agent's own."""
    if PurePosixPath("/") in runtime.written:
        return await runtime.can_start()
    with suppress(SandboxError):
        await runtime.exec(_control(runtime, env, "bash", "-p", "-c", ":"))
        return True
    _, folders = await _looked_up(runtime, "bash", env)
    return any(_is_inside(runtime, folder) for folder in folders)


async def _missing_program(runtime: Runtime, command: str, env: Mapping[str, str]) -> str | None:
    """The program that the command begins with, if the prepared base lacked it as well.

    None: it is there, or the agent could have removed it, or nobody can know.
    """
    first = _PROGRAM.match(command)
    if first is None:
        return None
    is_missing, folders = await _looked_up(runtime, first[1], env)
    return first[1] if is_missing and not any(_is_inside(runtime, folder) for folder in folders) else None


async def _looked_up(runtime: Runtime, program: str, env: Mapping[str, str]) -> tuple[bool, list[str]]:
    """Whether bash finds no such program, and the folders of PATH. False and no folders if bash doesn't start."""
    # By its path: a bash of the agent's own, in a folder of PATH, must not answer. -p: it runs no script that BASH_ENV names.
    try:
        ended = await runtime.exec(_control(runtime, env, "/bin/bash", "-p", "-c", _LOOK_UP, "bash", program))
    except SandboxError as error:
        if error.code != "not_started":
            raise
        return False, []
    code, _, path = ended.tail.removesuffix("\n").partition(" ")
    return ended.exit_code == 0 and code == "1", path.split(":")


def _control(runtime: Runtime, env: Mapping[str, str], *argv: str) -> Exec:
    """A program outside of the workspace, with a log that nothing of the agent's can stand in the way of."""
    log = f"control-{secrets.token_hex(8)}.log"
    return Exec(argv, cwd=str(runtime.home), env=env, log=log, timeout_s=CONTROL_S)


def _is_inside(runtime: Runtime, folder: str) -> bool:
    """Whether an agent can have written to a folder of PATH."""
    path = PurePosixPath(folder)
    return not path.is_absolute() or ".." in path.parts or any(path.is_relative_to(one) for one in runtime.written)
