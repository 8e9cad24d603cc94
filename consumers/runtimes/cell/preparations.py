"""Preparations of images that this host has made: sessions with equal beginnings of `runtime.prepare` begin where these ended.

Each action leaves a layer over the image and over the actions before it, as each line of a Dockerfile does in a builder; its name is of
`preparation_names`. A layer has the folders `root` and `workspace`, and whole copies of `home` and `tmp`. Invariants: a preparation is
whole or isn't there, and none goes while a session uses it or one above it. The KEPT that were used last stay.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from consumers.runtimes import file_locks, preparation_names, session_folder
from consumers.runtimes.base import SandboxError
from consumers.runtimes.cell.view import Folders
from topics.environment import private_files

log = structlog.get_logger()
_LIBC = ctypes.CDLL(None, use_errno=True)

KEPT = 256
"""Preparations on this host beside those in use."""

_USED = "preparation"
"""A file in a session's folder: the name of its preparation."""
_BELOW = "below"
"""A file in a preparation's folder: the name of the one before it."""
LAYERS = ("root", "workspace")
COPIES = ("home", "tmp")
"""Folders of a session, and of a preparation. A session has its own copies of these two."""
_GONE = ".gone-"
"""A folder that is being deleted has such a name, so that after a crash nobody uses what is left of it."""


def withhold(session: Path) -> None:
    """Keep a session that is about to be deleted from becoming a preparation: its layers are whole until then."""
    for name in (*LAYERS, *COPIES):
        with suppress(OSError):
            (session / name).rename(session / f"{_GONE}{name}")


class Preparations:
    """The preparations below `sessions`, the folder of the sessions."""

    def __init__(self, sessions: Path) -> None:
        self._sessions = sessions
        self._folder = sessions / preparation_names.FOLDER

    async def use(self, names: Sequence[str], session: Path) -> int:
        """Let a session use the last of these preparations that is there; it stays while `session` exists. How many are done then."""
        for done in range(len(names), 0, -1):
            if not (self._folder / names[done - 1]).is_dir():
                continue
            async with file_locks.held(self._use_lock()):
                if (found := self._folder / names[done - 1]).is_dir():
                    os.utime(found)
                    private_files.replace(session / _USED, found.name.encode())
                    return done
        return 0

    def used_by(self, session: Path) -> tuple[Path, ...]:
        """The folders of the preparation that a session uses and of those below it, the highest first. Raises SandboxError."""
        try:
            return tuple(self._folder / name for name in self._and_below((session / _USED).read_text()))
        except FileNotFoundError:
            return ()

    def _and_below(self, name: str) -> Iterator[str]:
        while name:
            yield name
            try:
                name = (self._folder / name / _BELOW).read_text()
            except FileNotFoundError as error:
                raise SandboxError("runtime_gone", f"the preparation {name} isn't in {self._folder}") from error

    async def keep(self, name: str, folders: Folders) -> None:
        """Keep what a session has prepared over the preparation that it uses; its own folders are new and empty then. Nothing runs in it,
        and the caller has the lock. Raises SandboxError `not_made`, `not_removed`."""
        partial = self._folder / f".{name}"
        await asyncio.to_thread(session_folder.delete, partial)
        try:
            await asyncio.to_thread(_sync, folders.top)
            # Without an await: nobody can cancel it half way, or remove the session between two of the folders.
            partial.mkdir(mode=0o700)
            (partial / _BELOW).write_text(folders.prepared[0].name if folders.prepared else "")
            for kept in (*LAYERS, *COPIES):
                found = (layer := folders.top / kept).stat()
                layer.rename(partial / kept)
                layer.mkdir()
                os.chown(layer, found.st_uid, found.st_gid)
            partial.rename(self._folder / name)
        except OSError as error:
            await asyncio.to_thread(session_folder.delete, partial)
            raise SandboxError("not_made", f"the preparation of {folders.top.name} can't be kept: {error}") from error

    async def forget_others(self) -> None:
        """Delete the preparations that were used longest ago, if no session uses them."""
        async with file_locks.held(self._use_lock()):
            named = sorted(self._named(), key=lambda path: path.stat().st_mtime, reverse=True)
            tops = [path.name for path in named[:KEPT]]
            for session in self._sessions.iterdir():
                with suppress(OSError):
                    tops.append((session / _USED).read_text())
            kept: set[str] = set()
            for top in tops:
                with suppress(SandboxError):  # the session goes
                    kept.update(self._and_below(top))
            for old in named[KEPT:]:
                if old.name not in kept:
                    old.rename(self._folder / f"{_GONE}{secrets.token_hex(8)}")
            gone = [path for path in self._folder.iterdir() if path.name.startswith(_GONE)]
        for folder in gone:
            try:
                await asyncio.to_thread(session_folder.delete, folder)
            except SandboxError as error:
                log.warning(
                    "an old preparation stays", action="preparation.not_removed", folder=str(folder), why=str(error)
                )

    def _named(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if not path.name.startswith(".")]

    def _use_lock(self) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._folder / ".lock-use"


def _sync(folder: Path) -> None:
    """Write a folder's file system to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _LIBC.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)
