"""A child process of `polar up` with a log; it is started again when it dies.

Invariant: at most one process runs at a time, it ends when this process does (`parent_watch.py`), and its log is bounded. The owner puts
the ports on which the child listens into `arguments`: a restarted child then listens on the same ports. A child with a listener is
started at the first connection to it, and again after it has ended by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from polar.embedded import parent_watch
from polar.embedded.forks import Fork, Forks
from polar.embedded.restart_policy import RestartPolicy
from topics.types.errors import NotReadyError
from topics.waiting.first_done import first_done

LOG_LIMIT = 16 * 1024 * 1024
"""Bytes; a longer log is moved to `<name>.log.1`, over the one before: 32 MiB per child at most, and a few hours of messages."""
LOG_CHECK_S = 10.0
"""A child that writes 1 MB/s, which none does, would be 10 MB over the limit."""


class ChildProcess:
    """`python -m <arguments…>` with `environment`, logging to `log`."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        *,
        environment: Mapping[str, str],
        announce: Callable[[str], None],
        log: Path | None = None,
        lock: int | None = None,
        listener: socket.socket | None = None,
        forks: Forks | None = None,
    ) -> None:
        """`announce` receives a line for each restart. `log`: None if the child writes to our stderr and never to standard output.

        `lock`: a file descriptor that the child inherits (`lock.py`). `listener`: a listening socket that it inherits as well. `forks`:
        a fork server that starts the child; None: it gets an interpreter of its own. A forked child needs a log, and inherits its server's
        lock and no listener.
        """
        self.name = name
        self.arguments = arguments
        self.has_answered = False
        """Set by the owner once the child serves: a death before is a failure to start, a later one is followed by a restart."""
        self._environment = environment
        self._log = log
        self._inherited = [each for each in (lock, None if listener is None else listener.fileno()) if each is not None]
        self._listener = listener
        self._announce = announce
        self._forks = forks
        self._process: asyncio.subprocess.Process | Fork | None = None
        self._stopping = asyncio.Event()

    async def keep(self) -> None:
        """Run the child until `stop`. Raises NotReadyError if it can't be started or dies too often."""
        policy = RestartPolicy()
        while not self._stopping.is_set():
            if self._listener is not None:
                await first_done(self._stopping, _connection(self._listener))
            if self._stopping.is_set():
                return
            policy.started()
            code = await self._run()
            if self._stopping.is_set():
                return
            if self._listener is not None and code == 0:
                continue  # nobody has asked for long
            ending = _ending(code)
            if not self.has_answered:
                raise NotReadyError(f"{self.name} ended with {ending} as it started:\n{self._log_tail()}")
            pause_s = policy.next_pause_s()
            if pause_s is None:
                raise NotReadyError(f"{self.name} dies again and again, last with {ending}:\n{self._log_tail()}")
            where = "" if self._log is None else f" (its log: {self._log})"
            self._announce(f"{self.name} ended with {ending}; starting it again{where}")
            await first_done(self._stopping, timeout_s=pause_s)

    async def stop(self, deadline_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `deadline_s`."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(deadline_s):
                await process.wait()
        except TimeoutError:
            self._announce(f"{self.name} didn't stop within {deadline_s:.0f} s; killing it")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _run(self) -> int:
        process = self._process = await self._start()
        if self._stopping.is_set():  # `stop` was called while the process was being created
            process.kill()
        while not (ended := await first_done(process.wait(), timeout_s=LOG_CHECK_S)):
            self._bound_log()
        [code] = ended.values()
        return int(code)

    async def _start(self) -> asyncio.subprocess.Process | Fork:
        if self._forks is not None:
            assert self._log is not None, "a forked child needs a log"
            return await self._forks.start(self.arguments, self._environment, self._log)
        with self._opened_log() as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                parent_watch.__file__,
                *self.arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=log or asyncio.subprocess.DEVNULL,
                stderr=log,
                env=self._environment,
                pass_fds=self._inherited,
                start_new_session=True,  # Ctrl-C is for `up`, which stops its children in order
            )

    def _opened_log(self) -> AbstractContextManager[BinaryIO | None]:
        if self._log is None:
            return contextlib.nullcontext()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        return self._log.open("ab")

    def _bound_log(self) -> None:
        """Copy a long log and truncate it: renaming would not help, since the process keeps its open file."""
        if self._log is None:
            return
        with contextlib.suppress(OSError):  # a full disk or a removed log is no reason to stop
            if self._log.stat().st_size > LOG_LIMIT:
                self._log.with_suffix(".log.1").write_bytes(self._log.read_bytes())
                os.truncate(self._log, 0)

    def _log_tail(self, lines: int = 15) -> str:
        if self._log is None:
            return "  its messages are above"
        with contextlib.suppress(FileNotFoundError):
            text = self._log.read_text(errors="replace")
            return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
        return ""


async def _connection(listener: socket.socket) -> None:
    """Wait until a connection to the listener waits for someone to accept it."""
    loop, waits = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener, waits.set)
    try:
        await waits.wait()
    finally:
        loop.remove_reader(listener)


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
