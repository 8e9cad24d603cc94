"""The log files of a data folder's parts: which there are, their last lines, and what is written afterwards.

A file may be replaced or emptied while it is followed; its new content counts then.
"""

from __future__ import annotations

import os
from pathlib import Path

TAIL_BYTES = 4 * 1024 * 1024
"""Read from a file's end: last lines that are longer together are cut at the front."""
PORTION = 1024 * 1024
"""Bytes that are read at a time while a file is followed."""


def parts(data: Path) -> dict[str, Path]:
    """Log files of a `polar up` on this data folder, by the part's name; empty if none ever ran."""
    found = {path.stem: path for path in sorted((data / "logs").glob("*.log"))}
    kafka = {"kafka": data / "kafka" / "logs" / "broker.log"}
    return found | {name: path for name, path in kafka.items() if path.exists()}


class LogFile:
    """One file, read from its last lines on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._position = 0
        self._begun = b""
        """The begun line at the end, which has no end yet."""

    def tail(self, lines: int) -> list[str]:
        """The last `lines` complete lines. `more` goes on behind them. Raises OSError."""
        with self._path.open("rb") as file:
            self._inode = os.fstat(file.fileno()).st_ino
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            *whole, self._begun = file.read(TAIL_BYTES).split(b"\n")
            self._position = file.tell()
        return [_text(line) for line in whole[len(whole) - min(lines, len(whole)) :]]

    def more(self) -> list[str]:
        """Complete lines that were written since the last read; none while the file is missing. Raises OSError for other faults."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._position:
                    self._inode, self._position, self._begun = found.st_ino, 0, b""
                file.seek(self._position)
                *whole, self._begun = (self._begun + file.read(PORTION)).split(b"\n")
                self._position = file.tell()
        except FileNotFoundError:
            self._inode = 0  # a new file may have the old one's number
            return []
        return [_text(line) for line in whole]


def _text(line: bytes) -> str:
    return line.decode(errors="replace").removesuffix("\r")
