"""The process that forks supervisors: it can be killed at any time, and never outlives its worker."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from consumers.runtimes import forkserver, launch, proctree
from consumers.runtimes.base import Exec, Runtime, SandboxError
from consumers.runtimes.forkserver import ForkServer
from tests.consumers.runtimes.conftest import workspace_of
from tests.waiting import eventually

pytestmark = pytest.mark.contract


def servers() -> set[int]:
    """Fork servers of this process."""
    children = [pid for pid, parent in proctree.parents().items() if parent == os.getpid()]
    return {pid for pid in children if b"runtimes.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()}


async def new_server(others: set[int]) -> int:
    """The server that started since. Its command line is empty for an instant, as it becomes Python."""
    await eventually(lambda: bool(servers() - others))
    (server,) = servers() - others
    return server


async def test_a_server_that_was_killed_is_replaced_and_its_supervisors_work_on(runtime: Runtime) -> None:
    others = servers()
    long = asyncio.create_task(runtime.exec(Exec("touch begun; until [ -e go ]; do sleep 0.01; done", log="long.log")))
    await eventually((workspace_of(runtime) / "begun").exists)
    server = await new_server(others)
    os.kill(server, signal.SIGKILL)
    # Its memory goes before its sockets do: only a zombie has let go of both.
    await eventually(lambda: psutil.Process(server).status() == psutil.STATUS_ZOMBIE)
    assert (await runtime.exec(Exec("touch go"))).exit_code == 0
    assert (await long).exit_code == 0


async def test_a_server_that_hangs_is_a_fault_of_one_program_and_is_replaced(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_REPORT_S", 0.2)
    others = servers()
    assert (await runtime.exec(Exec("true"))).exit_code == 0
    server = await new_server(others)
    os.kill(server, signal.SIGSTOP)
    with pytest.raises(SandboxError) as fault:
        await runtime.exec(Exec("touch ran", timeout_s=0.1))
    assert fault.value.code == "supervisor_lost"
    assert (await runtime.exec(Exec("test ! -e ran"))).exit_code == 0
    assert server not in servers()


async def test_a_worker_that_cannot_fork_does_not_blame_the_program(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation may blame `not_started` on the agent, so a fault of the machine has another code."""

    def refuse(_: ForkServer) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(ForkServer, "fork", refuse)
    with pytest.raises(SandboxError, match="temporarily unavailable") as fault:
        await runtime.exec(Exec("true"))
    assert fault.value.code == "supervisor_lost"


async def test_a_server_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line takes some hundred messages; the next one finds it full."""
    monkeypatch.setattr(forkserver, "_TAKE_S", 0.1)
    others = servers()
    forks = ForkServer()
    lines = [forks.fork()]
    server = await new_server(others)
    os.kill(server, signal.SIGSTOP)
    while server in servers():
        assert len(lines) < 5_000
        lines.append(forks.fork())
    lines[-1].shutdown(socket.SHUT_WR)
    assert lines[-1].recv(1) == b"", "the new server's supervisor has seen that there are no orders"
    for line in lines:
        line.close()


async def test_a_server_ends_with_its_owner() -> None:
    others = servers()
    forks = ForkServer()
    forks.fork().close()
    server = await new_server(others)
    del forks
    assert not Path(f"/proc/{server}").exists()
