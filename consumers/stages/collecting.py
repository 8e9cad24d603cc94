"""Runs the commands of `runtime.collect` in the sandbox that a run left.

They work among the run's files and with its programs, so nothing that they do is a verdict: what they write counts as the run's. As in
Harbor (0.26, trial/trial.py) a command that fails stops nothing. Other than there, programs that the run started don't live any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from consumers.runtimes.base import Exec, Runtime, SandboxError
from topics.types.errors import InputError
from topics.types.runtime import CollectSpec

log = structlog.get_logger()


async def collect(run: Runtime, commands: Sequence[CollectSpec]) -> list[str]:
    """One sentence for each command that failed. Raises SandboxError if the sandbox failed, and what the run left isn't the cause."""
    failures = []
    for index, one in enumerate(commands):
        if (failure := await _failure(run, one, f"collect-{index}.log")) is not None:
            failures.append(f"runtime.collect[{index}] {failure}")
            log.warning("a command of collect failed", action="collect.failed", index=index, why=failure)
    return failures


async def _failure(run: Runtime, one: CollectSpec, log_name: str) -> str | None:
    try:
        ended = await run.exec(Exec(one.command, log=log_name, timeout_s=one.timeout_s))
    except (SandboxError, InputError) as error:
        if isinstance(error, SandboxError) and (error.code != "not_started" or not await run.can_start()):
            raise
        return f"wasn't started: {error}"
    if ended.exit_code == 0:
        return None
    if ended.timed_out:
        return f"took longer than its timeout_s = {one.timeout_s:g} s"
    return f"{ended.exceeded or f'ended with exit code {ended.exit_code}'}; {ended.output_end}"
