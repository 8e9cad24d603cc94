"""Waits until a new sandbox is ready: until the command of `runtime.healthcheck` succeeds, as in Harbor (0.26, environments/base.py)."""

from __future__ import annotations

import asyncio
import time

from consumers.runtimes.base import Exec, Runtime, SandboxError
from topics.types.runtime import HealthcheckSpec


async def wait_until_healthy(runtime: Runtime, check: HealthcheckSpec) -> None:
    """Raises SandboxError `unhealthy`, and as `Runtime.exec`. The caller's cancellation is the only other deadline.

    Whether a sandbox becomes ready is a matter of time, load and networks, so another attempt may succeed.
    """
    started, counted = time.monotonic(), 0
    while True:
        is_counted = time.monotonic() - started >= check.start_period_s
        ended = await runtime.exec(Exec(check.command, log="healthcheck.log", timeout_s=check.timeout_s))
        if ended.exit_code == 0:
            return
        counted += is_counted
        if counted >= check.retries:
            how = (
                f"took longer than {check.timeout_s:g} s"
                if ended.timed_out
                else f"ended with exit code {ended.exit_code}"
            )
            raise SandboxError(
                "unhealthy",
                f"runtime.healthcheck failed {counted} times; the last time {check.command!r} {how}. No program of an image is "
                f"started, and programs of prepare have ended; {ended.output_end}",
            )
        await asyncio.sleep(check.interval_s if is_counted else check.start_interval_s)
