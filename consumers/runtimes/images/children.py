"""Programs that a worker runs to get an image. None outlives its worker, not even a killed one, or its caller's cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OUTPUT_BYTES = 64 * 1024
"""Kept of the end of a program's output."""
LOOK_S = 1.0
"""Between two calls of `watch`."""
_READ = 64 * 1024
_READS = 32
"""More than the largest pipe holds (1 MiB); a limit in case a process elsewhere has the pipe and goes on writing."""
_TETHER = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int
    """-n if signal n ended it."""
    output: str
    """The end of its stdout and stderr."""


class _Output:
    """The end of what is written to a pipe. All is read, so the writer never waits."""

    def __init__(self) -> None:
        self.end = b""
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        asyncio.get_running_loop().add_reader(self._reader, self._read)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._reader)
        for _ in range(_READS):
            if not self._read():
                break
        os.close(self._reader)

    def _read(self) -> bool:
        """False if there is nothing to read."""
        try:
            data = os.read(self._reader, _READ)
        except BlockingIOError:
            return False
        if not data:
            asyncio.get_running_loop().remove_reader(self._reader)
        self.end = (self.end + data)[-OUTPUT_BYTES:]
        return bool(data)


async def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    folder: Path,
    pass_fds: Sequence[int] = (),
    watch: Callable[[], None] | None = None,
) -> Ended:
    """Run a program, whose first word is its absolute path, in `folder`, to its end.

    `watch` is called now and then, in a thread; the program is killed if it raises. Whatever ends this call, the program and what it
    started are dead then. Raises OSError if it can't be started.
    """
    output = _Output()
    try:
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - a fork takes milliseconds
                [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output.writer,
                stderr=output.writer,
                env=dict(env),
                cwd=folder,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        finally:
            os.close(output.writer)
        try:
            await _until_end(process.pid, watch)
        finally:
            # Before the process is reaped, so its number is still the group's.
            _kill(process.pid)
            await asyncio.to_thread(process.wait)
    finally:
        output.close()
    return Ended(process.returncode, output.end.decode(errors="replace"))


async def _until_end(pid: int, watch: Callable[[], None] | None) -> None:
    """Wait until a child has ended, without reaping it. Raises the errors of `watch`."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, ended.set)
    try:
        while not ended.is_set():
            try:
                async with asyncio.timeout(LOOK_S):
                    await ended.wait()
            except TimeoutError:
                if watch is not None:
                    await asyncio.to_thread(watch)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _kill(group: int) -> None:
    """Kill a whole process group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # all have ended
        pass
