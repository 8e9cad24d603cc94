"""Runs the commands of `runtime.collect` in the sandbox that a run left.

They work among the run's files and with its programs, so nothing that they do is a verdict: what they write counts as the run's. As in
Harbor (0.26, trial/trial.py) a command that fails stops nothing. Unlike in Harbor, programs that the run started have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from consumers.runtimes.base import STORAGE_EXCEEDED, Exec, Runtime, SandboxError, is_broken_inside
from topics.types.errors import InputError
from topics.types.runtime import CollectSpec

log = structlog.get_logger()


async def collect(run: Runtime, commands: Sequence[CollectSpec]) -> list[str]:
    """One sentence for each command that failed. Raises SandboxError: STORAGE_EXCEEDED if one fills the session's
    storage, and others if the sandbox failed and what the run left isn't the cause."""
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
        if isinstance(error, SandboxError) and not await is_broken_inside(run, error):
            raise
        return f"wasn't started: {error}"
    if ended.exceeded:
        raise SandboxError(STORAGE_EXCEEDED, f"while collect ran: {ended.exceeded}")
    if ended.exit_code == 0:
        return None
    if ended.timed_out:
        return f"took longer than its timeout_s = {one.timeout_s:g} s"
    return f"ended with exit code {ended.exit_code}; {ended.output_end}"
