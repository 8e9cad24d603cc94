"""The worker's end of a supervisor: has it forked, asks it to stop when time is up, and waits for its report.

Invariant: an `exec` leaves no process behind. A supervisor that ends without a report was killed; then the caller's `sweep` kills
what it supervised. The caller owns paths, environment and marks.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from consumers.runtimes.base import ExecResult, SandboxError
from consumers.runtimes.supervisor import GRACE_S, KILL_S, Orders, Report
from topics.waiting.first_done import first_done

_READ = 65536
_REPORT_S = GRACE_S + KILL_S + 5
"""From the request to stop to the report; a supervisor that takes longer hangs and is killed."""
_LISTENERS = 8
"""More sockets than a cell listens on."""
_CLOSE_S = 1.0
"""For the socket of a killed supervisor to close."""


T = TypeVar("T")
WaysOut = Callable[[list[socket.socket]], AbstractAsyncContextManager[None]]


class Forks(Protocol):
    """What forks supervisors: see `ForkServer`."""

    def fork(self) -> socket.socket:
        """The socket of a new supervisor, which waits for its orders there. OSError."""

    def replace(self) -> None:
        """Fork by another server from now on."""


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended. `exit_code` None: we ended it; `timed_out`: because its time was up."""

    exit_code: int | None
    timed_out: bool
    tail: bytes

    def result(self, started: float, log: Path, exceeded: str = "") -> ExecResult:
        """`started`: by the monotonic clock."""
        return ExecResult(
            exit_code=self.exit_code,
            timed_out=self.timed_out,
            duration_s=time.monotonic() - started,
            log=log,
            tail=self.tail.decode(errors="replace"),
            exceeded=exceeded,
        )


async def launch(
    orders: Orders,
    forks: Forks,
    *,
    timeout_s: float | None,
    stops: Sequence[asyncio.Event],
    sweep: Callable[[], Awaitable[None]],
    ways_out: WaysOut | None = None,
) -> ProgramEnd:
    """Run one program under a supervisor of its own until its whole process tree is dead.

    `ways_out`: serves the sockets on which a cell listens, from its start to its end.

    Each of `stops` asks it to end. `sweep` kills all processes with the marks of `orders`, the supervisor included. Cancellation kills
    at once, and is raised when all are dead. Raises SandboxError `supervisor_lost`, `not_started`, `unkillable`.
    """
    try:
        line = forks.fork()
    except OSError as error:
        # Not `not_started`, which what a run left can cause.
        raise SandboxError("supervisor_lost", f"no supervisor could be started: {error}") from error
    with line:
        line.setblocking(False)
        report = asyncio.create_task(_read_whole(line, ways_out), name="supervisor-report")
        time_is_up = False
        try:
            data = marshal.dumps(dict(orders))
            await _send(line, len(data).to_bytes(4, "big") + data)
            time_is_up = not await first_done(report, *stops, timeout_s=timeout_s)
            if not report.done():
                await _send(line, b"!")
                await asyncio.wait({report}, timeout=_REPORT_S)
        finally:
            with suppress(OSError):
                line.shutdown(socket.SHUT_WR)  # a supervisor that hasn't reported kills now
            await to_the_end(_bury(report, sweep))
    if report.cancelled():
        # Not even its socket closed: it was never forked, because the server hangs.
        forks.replace()
        raise SandboxError("supervisor_lost", "no supervisor was forked for a program, or it didn't report its end")
    return _read(report.result(), time_is_up)


async def _read_whole(line: socket.socket, ways_out: WaysOut | None) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    async with AsyncExitStack() as open_ways:
        with suppress(ConnectionError):  # killed before it had read all
            if ways_out is not None:
                data, listeners = await _first(line)
                if listeners:
                    await open_ways.enter_async_context(ways_out(listeners))
            while more := await loop.sock_recv(line, _READ):
                data += more
    return data


async def _first(line: socket.socket) -> tuple[bytes, list[socket.socket]]:
    """A cell's sockets, or the first byte of a report on a cell that was never made."""
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(line, is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(line)
    data, descriptors, _, _ = socket.recv_fds(line, 1, _LISTENERS)
    listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    return (b"" if listeners else data), listeners


async def _send(line: socket.socket, data: bytes) -> None:
    """Send to a supervisor; one that is gone is noticed by its report, or by the lack of a report."""
    with suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(line, data)


async def _bury(report: asyncio.Task[bytes], sweep: Callable[[], Awaitable[None]]) -> None:
    """Wait until the supervisor and all that it supervised are dead."""
    try:
        await asyncio.wait({report}, timeout=_REPORT_S)
        if not report.done() or not report.result():
            await sweep()
            await asyncio.wait({report}, timeout=_CLOSE_S)
    finally:
        report.cancel()  # no process of ours has the socket any more


async def to_the_end(ending: Awaitable[T]) -> T:
    """Await `ending` to its end, however often we are cancelled meanwhile; it has deadlines of its own."""
    task = asyncio.ensure_future(ending)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()


def _read(data: bytes, time_is_up: bool) -> ProgramEnd:
    if not data:
        raise SandboxError("supervisor_lost", "the supervisor of a program was killed; its programs are dead too")
    report: Report = marshal.loads(data)  # noqa: S302 - from our own supervisor
    if report["error"]:
        raise SandboxError("not_started", f"the program can't be started: {report['error']}")
    if report["left"]:
        raise SandboxError("unkillable", f"processes {report['left']} of the program can't be killed")
    status = report["status"]
    if status is None:
        return ProgramEnd(exit_code=None, timed_out=time_is_up, tail=report["tail"])
    code = os.waitstatus_to_exitcode(status)
    return ProgramEnd(exit_code=code if code >= 0 else 128 - code, timed_out=False, tail=report["tail"])
