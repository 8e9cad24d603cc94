"""A program in the foreground: it has our terminal, our standard streams, and the signals that would end us."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

GRACE_S = 10
"""Seconds between a signal that should end the program and SIGKILL."""
OF_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals of its keys, which go to every process in its foreground, and which a program may survive."""
ENDING = (*OF_THE_TERMINAL, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):  # noqa: N818 - no error: somebody wants an end
    """A signal came before the program started."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Foreground:
    """Inside `guarded`, signals that would end this process reach its program. Before its start they raise Interrupted, once."""

    def __init__(self) -> None:
        self._program: subprocess.Popen[bytes] | None = None
        self._while_starting: list[int] | None = None
        """Signals that came during the program's start."""
        self._is_over = False
        self._is_ending = False

    @contextmanager
    def guarded(self) -> Iterator[None]:
        # What is ignored stays ignored, by the program as well: `nohup` does it.
        heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in heard}
        before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_alarm)
        try:
            yield
        finally:
            signal.alarm(0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, command: Sequence[str], env: Mapping[str, str]) -> int:
        """Run a program to its end; its exit code, as a shell has it. Raises OSError if it can't be started."""
        self._while_starting = []
        try:
            # A handler, unlike SIG_IGN, isn't inherited: the program has its own behaviour.
            self._program = subprocess.Popen(command, env=env)
        finally:
            remembered, self._while_starting = self._while_starting, None
            for number in remembered:
                # Also one of the terminal's: the program didn't exist yet, or hadn't its own behaviour.
                self._send(number)
        code = self._program.wait()
        return code if code >= 0 else 128 - code

    def finish(self) -> None:
        """From now on signals have no effect, so what follows isn't interrupted."""
        self._is_over = True

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._while_starting is not None:
            self._while_starting.append(number)
        elif self._program is None or number not in OF_THE_TERMINAL or not _is_in_foreground():
            self._send(number)

    def _send(self, number: int) -> None:
        if self._is_over:
            return
        if self._program is None:
            self._is_over = True
            raise Interrupted(number)
        self._program.send_signal(number)
        if number not in OF_THE_TERMINAL and not self._is_ending:
            self._is_ending = True
            signal.alarm(GRACE_S)

    def _on_alarm(self, _: int, __: FrameType | None) -> None:
        if self._program is not None:
            self._program.kill()


def _is_in_foreground() -> bool:
    """Whether a terminal sends the signals of its keys to our process group. Standard input may be something else."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
