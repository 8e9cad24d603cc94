"""One part of a `polar up`: a child process with a log, started again when it dies.

Invariant: a part has at most one process, which ends when this one does (`parent_watch.py`), and its log is bounded. The owner of a part
puts the ports that the part was given into its arguments, so that a restarted part listens on the same ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from polar.embedded import parent_watch
from polar.embedded.restart_policy import Patience, rest
from topics.types.errors import NotReady

LOG_LIMIT = 16 * 1024 * 1024
"""Bytes; then the log becomes `<name>.log.1`, over the one before."""
LOG_CHECK_S = 10.0


class Part:
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
    ) -> None:
        """`announce` gets a line for each death. `log`: None where it shares our stderr, and never writes to standard output.

        `lock`: a file descriptor that the process inherits (`lock.py`).
        """
        self.name = name
        self.arguments = arguments
        self.has_answered = False
        """Set by the owner: before, a death is a failure to start; from then on it is mended."""
        self._environment = environment
        self._log = log
        self._lock = lock
        self._announce = announce
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    async def keep(self) -> None:
        """Run the part until `stop`. Raises NotReady when it can't be started, or dies too often."""
        patience = Patience()
        while not self._stopping.is_set():
            patience.began()
            ending = _ending(await self._run())
            if self._stopping.is_set():
                return
            if not self.has_answered:
                raise NotReady(f"{self.name} ended with {ending} as it started:\n{self._log_tail()}")
            pause = patience.pause()
            if pause is None:
                raise NotReady(f"{self.name} dies again and again, last with {ending}:\n{self._log_tail()}")
            where = "" if self._log is None else f" (its log: {self._log})"
            self._announce(f"{self.name} ended with {ending}; starting it again{where}")
            await rest(pause, self._stopping)

    async def stop(self, deadline_s: float) -> None:
        """SIGTERM, and SIGKILL where that hasn't ended it in time."""
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
        """One life of the process; its exit code."""
        with self._opened_log() as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                parent_watch.__file__,
                *self.arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=log or asyncio.subprocess.DEVNULL,
                stderr=log,
                env=self._environment,
                pass_fds=() if self._lock is None else (self._lock,),
                start_new_session=True,  # Ctrl-C is for `up`, which stops its parts in order
            )
        self._process = process
        if self._stopping.is_set():  # `stop` came while it was being born, and didn't see it
            process.kill()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOG_CHECK_S):
                    return await process.wait()
            self._bound_log()

    def _opened_log(self) -> AbstractContextManager[BinaryIO | None]:
        if self._log is None:
            return contextlib.nullcontext()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        return self._log.open("ab")

    def _bound_log(self) -> None:
        """The process keeps its descriptor, opened to append: so the log is copied and cut, not moved."""
        if self._log is None:
            return
        with contextlib.suppress(OSError):  # a full disk, a log that was removed: no reason to stop
            if self._log.stat().st_size > LOG_LIMIT:
                self._log.with_suffix(".log.1").write_bytes(self._log.read_bytes())
                os.truncate(self._log, 0)

    def _log_tail(self, lines: int = 15) -> str:
        if self._log is None:
            return "  what it says of it stands above"
        with contextlib.suppress(FileNotFoundError):
            text = self._log.read_text(errors="replace")
            return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
        return ""


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
