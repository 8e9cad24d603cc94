"""The process that forks supervisors: it can be killed at any time, and never outlives its worker."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from consumers.runtimes.base import Exec
from consumers.runtimes.forkserver import ForkServer
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.runtimes.conftest import Eventually


def servers() -> set[int]:
    """Fork servers of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in children if b"runtimes.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()}


async def test_a_server_that_was_killed_is_replaced_and_its_supervisors_work_on(
    runtime: ProcessRuntime, eventually: Eventually
) -> None:
    others = servers()
    long = asyncio.create_task(runtime.exec(Exec("touch begun; until [ -e go ]; do sleep 0.01; done", log="long.log")))
    await eventually(Path(runtime.workspace, "begun").exists)
    (server,) = servers() - others
    os.kill(server, signal.SIGKILL)
    await eventually(lambda: not Path(f"/proc/{server}/cmdline").read_bytes())
    assert (await runtime.exec(Exec("touch go"))).exit_code == 0
    assert (await long).exit_code == 0


async def test_a_server_ends_with_its_owner() -> None:
    others = servers()
    forks = ForkServer()
    forks.fork().close()
    (server,) = servers() - others
    del forks
    assert not Path(f"/proc/{server}").exists()
