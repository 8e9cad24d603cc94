"""Free space on the disk of this worker's runtimes. While it is less than the reserve (`cell/storage.py`), no session begins here.

A new runtime would fail there and cost its session an attempt. The other stages go on: they write little, and a session's end removes its
files. So sessions that filled the disk make room themselves, and what others wrote there is removed by people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from consumers.runtimes.cell import storage

LOOK_S = 1.0
"""Between two looks: one system call each."""

log = structlog.get_logger()


class DiskRoom:
    """The room on the disk of `folder`. `on_change` is called when the reserve is lost or regained."""

    def __init__(self, folder: Path, on_change: Callable[[], None]) -> None:
        self._folder = folder
        self._on_change = on_change
        self._has_room = asyncio.Event()
        """As of the last look."""
        self._has_room.set()

    @property
    def is_short(self) -> bool:
        """Whether the disk has less than its reserve, now."""
        try:
            return storage.lacks_reserve(str(self._folder))
        except FileNotFoundError:  # the first runtime makes it
            return False

    @property
    def obstacle(self) -> str:
        """A sentence on the lack of room, and what to do; empty if there is room."""
        if not self.is_short:
            return ""
        megabytes = storage.reserve(str(self._folder)) >> 20
        return f"no session begins here: the disk of {self._folder} has less than {megabytes} MB free, its reserve; make room"

    async def watch(self) -> None:
        """Log each change, and report it to the coordinators."""
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    async def regained(self) -> None:
        """Return when the disk has its reserve, by the looks of `watch`."""
        self._look()
        await self._has_room.wait()

    def _look(self) -> None:
        obstacle = self.obstacle
        if bool(obstacle) != self._has_room.is_set():
            return
        if obstacle:
            self._has_room.clear()
            log.warning(obstacle, action="worker.disk_short")
        else:
            self._has_room.set()
            log.info(f"the disk of {self._folder} has room: sessions begin again", action="worker.disk_recovered")
        self._on_change()
