"""A program in the foreground: it has our terminal, our standard streams, and the signals that would end us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

GRACE_S = 10
"""Seconds between a signal that should end the program and SIGKILL."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):  # noqa: N818 - no error: somebody wants an end
    """A signal came while no program ran."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Foreground:
    """Inside `with`, signals that would end this process reach its program, or raise Interrupted while there is none."""

    def __init__(self) -> None:
        self._program: subprocess.Popen[bytes] | None = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in ENDING}
        before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_alarm)
        try:
            yield
        finally:
            signal.alarm(0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, command: Sequence[str], env: Mapping[str, str]) -> int:
        """Run a program to its end; its exit code, as a shell has it. Raises OSError if it can't be started."""
        # A handler, unlike SIG_IGN, isn't inherited: the program has its own behaviour.
        self._program = subprocess.Popen(command, env=os.environ | env)
        code = self._program.wait()
        return code if code >= 0 else 128 - code

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._program is None:
            raise Interrupted(number)
        if number == signal.SIGINT and sys.stdin.isatty():
            return  # the terminal has sent it to the program, too
        self._program.send_signal(number)
        if number != signal.SIGINT:
            signal.alarm(GRACE_S)

    def _on_alarm(self, _: int, __: FrameType | None) -> None:
        if self._program is not None:
            self._program.kill()
