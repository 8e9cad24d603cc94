"""Preparations of images that this host has made: sessions with an equal preparation begin where the first one ended.

A preparation is what `runtime.prepare` left in an image: the layer `root`, the layer `workspace`, and the home. It is named by all that
decides it, so another command, another uploaded file or another image is another preparation. Invariants: a preparation is whole or isn't
there, and none goes while a session uses it. The KEPT that were used last stay.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePosixPath

from consumers.runtimes import file_locks, session_folder
from consumers.runtimes.base import SandboxError
from consumers.runtimes.cell.view import Folders
from consumers.runtimes.images.store import Image
from topics.environment import private_files
from topics.types.task import LIMITS, RuntimeSpec

_LIBC = ctypes.CDLL(None, use_errno=True)

KEPT = 64
"""Preparations on this host beside those in use."""
FOLDER = ".prepared"
"""In the folder of the sessions, none of which has such a name."""

_USED = "preparation"
"""A file in a session's folder: the name of its preparation."""
LAYERS = ("root", "workspace", "home")
"""Folders of a session, and of a preparation."""
_GONE = ".gone-"
"""What is about to be deleted has such a name: after a crash nobody takes a half of it for the whole."""
_LOCKS = 16
"""Files for locks: two preparations with one lock are made one after the other."""


def name_of(image: Image, spec: RuntimeSpec) -> str:
    """The name of a preparation."""
    actions = []
    for action in spec.prepare:
        # Of an upload's path only the last name decides anything: a file's name in a target that is a folder.
        file_name = PurePosixPath(action.source).name if action.type == "upload_file" and action.source else ""
        actions.append([file_name, action.model_dump(mode="json", exclude={"source"})])
    decisive = [
        image.digest,
        actions,
        spec.model_dump(mode="json", include={"env", "path", "workdir", "setup_network", "allowed_hosts", *LIMITS}),
    ]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def withhold(session: Path) -> None:
    """Keep a session that is about to be deleted from becoming a preparation: its layers are whole until then."""
    for name in LAYERS:
        with suppress(OSError):
            (session / name).rename(session / f"{_GONE}{name}")


class Preparations:
    """The preparations below `sessions`, the folder of the sessions."""

    def __init__(self, sessions: Path) -> None:
        self._sessions = sessions
        self._folder = sessions / FOLDER

    @asynccontextmanager
    async def locked(self, name: str) -> AsyncIterator[None]:
        """Make a preparation alone on this host."""
        async with file_locks.held(self._lock(f"making-{int(name[:8], 16) % _LOCKS}")):
            yield

    async def use(self, name: str, session: Path) -> Path | None:
        """The folder of a preparation, which stays while `session` exists; None if there is none."""
        if not (self._folder / name).is_dir():
            return None
        async with file_locks.held(self._lock("use")):
            if not (found := self._folder / name).is_dir():
                return None
            os.utime(found)
            private_files.replace(session / _USED, name.encode())
        return found

    def used_by(self, session: Path) -> Path | None:
        """The folder of the preparation that a session uses."""
        try:
            return self._folder / (session / _USED).read_text()
        except FileNotFoundError:
            return None

    async def keep(self, name: str, folders: Folders) -> None:
        """Keep what a session has prepared, in which nothing runs; its home and layers are new and empty then. The caller has the lock.
        Raises SandboxError `not_made`, `not_removed`."""
        partial = self._folder / f".{name}"
        await asyncio.to_thread(session_folder.delete, partial)
        try:
            await asyncio.to_thread(_sync, folders.top)
            # Without an await: nobody can cancel it half way, or remove the session between two of the three.
            partial.mkdir(mode=0o700)
            for kept in LAYERS:
                found = (layer := folders.top / kept).stat()
                layer.rename(partial / kept)
                layer.mkdir()
                os.chown(layer, found.st_uid, found.st_gid)
            partial.rename(self._folder / name)
        except OSError as error:
            await asyncio.to_thread(session_folder.delete, partial)
            raise SandboxError("not_made", f"the preparation of {folders.top.name} can't be kept: {error}") from error

    async def forget_others(self) -> None:
        """Delete the preparations that were used longest ago, if no session uses them. Raises SandboxError `not_removed`."""
        async with file_locks.held(self._lock("use")):
            kept = sorted(self._named(), key=lambda path: path.stat().st_mtime, reverse=True)
            used = {self.used_by(session) for session in self._sessions.iterdir() if session.is_dir()}
            for old in kept[KEPT:]:
                if old not in used:
                    old.rename(self._folder / f"{_GONE}{secrets.token_hex(8)}")
            gone = [path for path in self._folder.iterdir() if path.name.startswith(_GONE)]
        for folder in gone:
            await asyncio.to_thread(session_folder.delete, folder)

    def _named(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if not path.name.startswith(".")]

    def _lock(self, name: str) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._folder / f".lock-{name}"


def _sync(folder: Path) -> None:
    """Write a folder's file system to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _LIBC.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)
