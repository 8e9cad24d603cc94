"""A process on a terminal of its own, as the commands find one, and all that they wrote there."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence

DEADLINE_S = 30.0


class Terminal:
    """Starts `command` on it; to be closed."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], columns: int, lines: int) -> None:
        self._ours, self._its = pty.openpty()
        self.resize(columns, lines)
        self._before = termios.tcgetattr(self._its)
        self.wrote = ""
        self.process = subprocess.Popen(command, env=environment, stdin=self._its, stdout=self._its, stderr=self._its)

    @property
    def is_as_before(self) -> bool:
        """Whether its modes are those that the command found."""
        return termios.tcgetattr(self._its) == self._before

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def read_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, self.wrote[-3000:]
            self._read(0.1)

    def end(self, number: signal.Signals | None = None) -> int:
        """Tell it to end, or wait until it does; the exit code. What it wrote at last is read."""
        if number is not None:
            self.process.send_signal(number)
        self.read_until(lambda: self.process.poll() is not None)
        while self._read(0):
            pass
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._its)

    def _read(self, wait_s: float) -> bool:
        is_there = bool(select.select([self._ours], [], [], wait_s)[0])
        if is_there:
            self.wrote += os.read(self._ours, 65536).decode(errors="replace")
        return is_there
