"""Preparations of images that this host has made: sessions with an equal preparation begin where the first one ended.

A preparation is what `runtime.prepare` left in an image: the layer `root`, the layer `workspace`, and the home. It is named by all that
decides it, so another command, another uploaded file or another image is another preparation. Invariants: a preparation is whole or isn't
there, and none goes while a session uses it. The KEPT that were used last stay.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

from consumers.runtimes import file_locks, session_folder
from consumers.runtimes.cell.view import Folders
from consumers.runtimes.images.store import Image
from topics.environment import private_files
from topics.types.task import RuntimeSpec

KEPT = 64
"""Preparations on this host beside those in use."""
FOLDER = ".prepared"
"""In the folder of the sessions, none of which has such a name."""

_USED = "preparation"
"""A file in a session's folder: the name of its preparation."""
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
        spec.model_dump(mode="json", include={"env", "path", "workdir", "setup_network", "allowed_hosts"}),
    ]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


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

    def keep(self, name: str, folders: Folders) -> None:
        """Keep what a session has prepared, in which nothing runs; its layers are new and empty then. The caller has the lock. Raises
        OSError and SandboxError `not_removed`."""
        partial = self._folder / f".{name}"
        session_folder.delete(partial)
        partial.mkdir(mode=0o700)
        shutil.copytree(folders.home, partial / "home", symlinks=True)
        assert folders.root is not None, "a session with an image"
        assert folders.workspace_layer is not None, "as well"
        for layer, kept in ((folders.root.overlay.upper, "root"), (folders.workspace_layer.upper, "workspace")):
            found = layer.stat()
            layer.rename(partial / kept)
            layer.mkdir()
            os.chown(layer, found.st_uid, found.st_gid)
        partial.rename(self._folder / name)

    async def forget_others(self) -> None:
        """Delete the preparations that were used longest ago, if no session uses them. Raises SandboxError `not_removed`."""
        async with file_locks.held(self._lock("use")):
            kept = sorted(self._named(), key=lambda path: path.stat().st_mtime, reverse=True)
            used = {self.used_by(session) for session in self._sessions.iterdir() if session.is_dir()}
            for old in kept[KEPT:]:
                if old not in used:
                    session_folder.delete(old)

    def _named(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if not path.name.startswith(".")]

    def _lock(self, name: str) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._folder / f".lock-{name}"
