"""Starts processes through a fork server (`fork_server.py`), and tells when they end.

Invariant: a process counts as running until it has ended. When the server dies, which nothing but a kill brings about, its processes are
killed too, and the next start brings a new server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgspec

from polar.embedded.fork_server import REPLIES, Ended, Signal, Start, Started
from topics.types.errors import NotReadyError

START_S = 60.0
"""For the server to import its modules, a second on an idle machine, and to fork."""
STOP_S = 2.0
KILL_S = 5.0
"""For the kernel to end a killed process, and for the process that inherits it to collect it."""
LOOK_S = 0.02


class Fork:
    """A process that the server has forked; used as an `asyncio.subprocess.Process` is."""

    def __init__(self, number: int, server: _Server) -> None:
        self.started = asyncio.Event()
        """Set when `pid` is known, or the process never was."""
        self.pid = 0
        self.returncode: int | None = None
        self._number = number
        self._server = server
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self._server.send(Signal(self._number, signal.SIGTERM))

    def kill(self) -> None:
        self._server.send(Signal(self._number, signal.SIGKILL))

    def end(self, code: int) -> None:
        """Called by the server's end of this."""
        self.returncode = code
        self.started.set()
        self._ended.set()


class Forks:
    """A fork server, replaced when it has died."""

    def __init__(self, title: str, modules: Sequence[str], log: Path, lock: int) -> None:
        """`title`: for lists of processes. `modules`: what the server imports. `lock`: a file descriptor that all its processes inherit."""
        self._arguments = [title, *modules]
        self._log = log
        self._lock = lock
        self._starting = asyncio.Lock()
        self._server: _Server | None = None

    async def open(self) -> None:
        """Start the server, unless it runs."""
        async with self._starting:
            if self._server is None or self._server.is_gone:
                self._server = await _Server.started(self._arguments, self._log, self._lock)

    async def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Fork:
        """Run `python -m <arguments…>`, with its output appended to `log`. Raises NotReadyError if the server can't start."""
        await self.open()
        assert self._server is not None
        return await self._server.fork(arguments, environment, log)

    async def stop(self) -> None:
        """End the server; its processes, which should have ended before, are told to end."""
        if self._server is not None:
            await self._server.stop()


class _Server:
    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: Path
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._log = log
        self._numbers = count()
        self._forks: dict[int, Fork] = {}
        """Those that may live, by number."""
        self.is_gone = False
        self._reading = asyncio.create_task(self._read(), name="fork-server")

    @classmethod
    async def started(cls, arguments: Sequence[str], log: Path, lock: int) -> _Server:
        ours, theirs = socket.socketpair()
        log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "polar.embedded.fork_server", *arguments),
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                # A process with threads should not be forked, and numpy would start some.
                env=os.environ | {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[lock],
                start_new_session=True,
            )
        return cls(process, *await asyncio.open_unix_connection(sock=ours), log)

    async def fork(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Fork:
        number = next(self._numbers)
        fork = self._forks[number] = Fork(number, self)
        variables = [(os.fsencode(name), os.fsencode(value)) for name, value in environment.items()]
        self.send(Start(number, list(map(os.fsencode, arguments)), variables, os.fsencode(log)))
        try:
            async with asyncio.timeout(START_S):
                await fork.started.wait()
        except TimeoutError:
            await self.stop()
            raise NotReadyError(
                f"the fork server didn't answer within {START_S:.0f} s (its log: {self._log})"
            ) from None
        if not fork.pid:
            raise NotReadyError(f"the fork server ended as it started (its log: {self._log})")
        return fork

    def send(self, order: Start | Signal) -> None:
        if not self.is_gone:
            self._writer.write(msgspec.json.encode(order) + b"\n")

    async def stop(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._reading

    async def _read(self) -> None:
        with suppress(OSError):
            while line := await self._reader.readline():
                reply = REPLIES.decode(line)
                if isinstance(reply, Started):
                    self._forks[reply.number].pid = reply.pid
                    self._forks[reply.number].started.set()
                elif isinstance(reply, Ended):
                    self._forks.pop(reply.number).end(reply.code)
        self.is_gone = True
        self._writer.close()
        for fork in self._forks.values():
            await _kill_orphan(fork.pid)
            fork.end(-signal.SIGKILL)
        self._forks.clear()
        await self._process.wait()


async def _kill_orphan(pid: int) -> None:
    """Kill a process that is nobody's child any more, with its group, and wait until it has ended."""
    with suppress(ProcessLookupError, PermissionError, TimeoutError):
        async with asyncio.timeout(KILL_S):
            while pid:
                os.killpg(pid, signal.SIGKILL)
                await asyncio.sleep(LOOK_S)
