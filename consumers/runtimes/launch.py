"""The worker's end of a supervisor: has one forked, tells it when time is up, and does not return before it has reported.

Owns the rule that an `exec` leaves no process behind, seen from the worker: a supervisor that ends without a report was killed,
and then the caller's `sweep` finds what it had in its care. Leaves to the caller paths, environment and marks.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass

from consumers.runtimes.base import SandboxError
from consumers.runtimes.forkserver import ForkServer
from consumers.runtimes.supervisor import GRACE_S, KILL_S, Orders, Report
from topics.waiting.first_done import first_done

_READ = 65536
_REPORT_S = GRACE_S + KILL_S + 5
"""From asking for an end to the report; past it the supervisor itself hangs, and is killed."""
_LINE_S = 1.0
"""For the line of a supervisor that was killed to end."""


@dataclass(frozen=True)
class Ended:
    """How a program ended: `exit_code` None where we ended it, `timed_out` where that was for its time."""

    exit_code: int | None
    timed_out: bool
    tail: bytes


async def launch(
    orders: Orders,
    forks: ForkServer,
    *,
    timeout_s: float | None,
    stop: asyncio.Event | None,
    sweep: Callable[[], Awaitable[None]],
) -> Ended:
    """Run one program under a supervisor of its own, to the death of its whole tree.

    `sweep` kills all that bears the marks of `orders`, the supervisor too. Cancellation kills at once and is raised only when all is
    dead. SandboxError: `supervisor_lost`, `not_started`, `unkillable`.
    """
    try:
        line = forks.fork()
    except OSError as error:
        raise SandboxError("not_started", f"no supervisor could be started: {error}") from error
    with line:
        line.setblocking(False)
        report = asyncio.create_task(_read_whole(line), name="supervisor-report")
        time_is_up = False
        try:
            data = marshal.dumps(dict(orders))
            await _tell(line, len(data).to_bytes(4, "big") + data)
            time_is_up = not await first_done(report, *([stop] if stop else []), timeout_s=timeout_s)
            if not report.done():
                await _tell(line, b"!")
                await asyncio.wait({report}, timeout=_REPORT_S)
        finally:
            with suppress(OSError):
                line.shutdown(socket.SHUT_WR)  # with the report out this changes nothing; else it means: kill now
            await _to_the_end(_bury(report, sweep))
    if report.cancelled():
        # Not even its line ended: it was never forked, since the server hangs.
        forks.replace()
        raise SandboxError("supervisor_lost", "no supervisor was forked for a program, or it told nothing of its end")
    return _read(report.result(), time_is_up)


async def _read_whole(line: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    with suppress(ConnectionError):  # killed before it had read all
        while more := await loop.sock_recv(line, _READ):
            data += more
    return data


async def _tell(line: socket.socket, data: bytes) -> None:
    """A supervisor that is gone is known by its report, or the lack of one."""
    with suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(line, data)


async def _bury(report: asyncio.Task[bytes], sweep: Callable[[], Awaitable[None]]) -> None:
    """See the supervisor dead, and what it had in its care."""
    try:
        await asyncio.wait({report}, timeout=_REPORT_S)
        if not report.done() or not report.result():
            await sweep()
            await asyncio.wait({report}, timeout=_LINE_S)
    finally:
        report.cancel()  # what holds the line now is none of ours


async def _to_the_end(ending: Coroutine[None, None, None]) -> None:
    """Await `ending` whole, however often we are cancelled meanwhile; it has deadlines of its own."""
    task = asyncio.create_task(ending, name="supervisor-end")
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    task.result()


def _read(data: bytes, time_is_up: bool) -> Ended:
    if not data:
        raise SandboxError("supervisor_lost", "the supervisor of a program was killed; its programs are dead, too")
    report: Report = marshal.loads(data)  # noqa: S302 - from our own supervisor
    if report["error"]:
        raise SandboxError("not_started", f"the program can't be started: {report['error']}")
    if report["left"]:
        raise SandboxError("unkillable", f"processes {report['left']} of the program can't be killed")
    status = report["status"]
    if status is None:
        return Ended(exit_code=None, timed_out=time_is_up, tail=report["tail"])
    code = os.waitstatus_to_exitcode(status)
    return Ended(exit_code=code if code >= 0 else 128 - code, timed_out=False, tail=report["tail"])
