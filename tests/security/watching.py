"""Looks at every process of the machine while a system runs: what its command line and its environment show."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.security.scan import MARKS
from topics.environment.redaction import PREFIX

LOOK_S = 0.25


class Processes:
    """A thread that looks again and again; `found` is what should not have been there."""

    def __init__(self, data: Path) -> None:
        self._data = str(data).encode()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="processes")
        self.found: set[str] = set()
        self.harnesses: set[int] = set()
        """Processes that had a session's key in their environment, where it belongs."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    line, environment = ((folder / name).read_bytes() for name in ("cmdline", "environ"))
                except OSError:
                    continue  # it has ended
                self._look(int(folder.name), line, environment)

    def _look(self, pid: int, line: bytes, environment: bytes) -> None:
        is_ours = self._data in line or self._data in environment
        has_key = is_ours and PREFIX.encode() in environment
        if has_key and b"POLAR_SESSION_ID=" in environment:
            self.harnesses.add(pid)
        elif has_key:
            self.found.add(f"environment of {line!r}")
        if any(mark in environment for mark in MARKS):
            self.found.add(f"environment of {line!r}")
        if any(mark in line for mark in MARKS) or (is_ours and PREFIX.encode() in line):
            self.found.add(f"command line {line!r}")
