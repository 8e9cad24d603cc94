"""The folder of one runtime on the worker's host, for backends that keep a session's files there.

Owns `<root>/<claim id of the maker>/` with `logs`, `meta.json` and the folders that a backend adds. Invariants: a folder's name is the
claim that made it, so half-made and half-removed folders are found and reaped too. A supervisor shows the marks `POLAR_RUNTIME` (the
maker's claim) and `POLAR_CLAIM` (the claim that started the program), so whatever runs in a folder is found through /proc.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec

from consumers.runtimes import proctree
from consumers.runtimes.base import Handle, Labelled, Labels, SandboxError, untrusted_opener
from consumers.runtimes.upload import Upload
from topics.types.errors import InputError

RUNTIME_MARK = "POLAR_RUNTIME"
CLAIM_MARK = "POLAR_CLAIM"
CLAIM_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

_UNUSABLE = {
    *(errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENAMETOOLONG),
}
"""Errors that what lies at a path causes, rather than this machine."""
_META = "meta.json"
_META_BYTES = 4096
_SWEEP_S = 10.0
"""Limit for killing all processes with a mark; see `supervisor.KILL_S`."""


class _Meta(msgspec.Struct):
    """The labels in a runtime's folder."""

    namespace: str = ""
    session_id: str = ""
    attempt: int = 0


class SessionFolders:
    """The runtimes of one backend under `root`, which all workers of a pool on this host share."""

    def __init__(self, root: Path, backend: str, needed: str = "workspace") -> None:
        """`needed`: the entry without which a runtime's folder isn't whole."""
        self.root = root.absolute()
        self._backend = backend
        self._needed = needed

    def new(self, labels: Labels, names: Iterable[str]) -> Path:
        """A new folder with its labels and empty folders `names`. Raises SandboxError `runtime_exists`, and InputError for the claim."""
        check_claim_id(labels.claim_id)
        folder = self.root / labels.claim_id
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError as error:
            raise SandboxError("runtime_exists", f"claim {labels.claim_id} has made a runtime before") from error
        meta = _Meta(labels.namespace, labels.session_id, labels.attempt)
        (folder / _META).write_bytes(msgspec.json.encode(meta))
        for name in names:
            (folder / name).mkdir()
        return folder

    def found(self, handle: Handle) -> Path:
        """The folder of a handle, which may be gone. Raises SandboxError for a foreign handle: it came over the network and names a folder
        that may be removed."""
        claim_id = handle.get("id", "")
        if CLAIM_ID.fullmatch(claim_id) is None:
            raise SandboxError("runtime_gone", f"no runtime has the id {claim_id!r:.200}")
        return self.root / claim_id

    def live(self, handle: Handle) -> Path:
        """The folder of a handle, whole. Raises SandboxError `runtime_gone`."""
        folder = self.found(handle)
        if not (folder / self._needed).exists():
            raise SandboxError(
                "runtime_gone",
                f"no runtime {folder.name} under {self.root} on {socket.gethostname()}; it was made on {handle.get('host')}",
            )
        return folder

    def handle(self, folder: Path) -> Handle:
        return {"backend": self._backend, "host": socket.gethostname(), "id": folder.name}

    def labelled(self) -> list[Labelled]:
        """All runtimes, half-made ones included."""
        if not self.root.is_dir():
            return []
        return [
            Labelled(labels_of(folder), self.handle(folder))
            for folder in sorted(self.root.iterdir())
            if CLAIM_ID.fullmatch(folder.name) and folder.is_dir()
        ]


def check_claim_id(claim_id: str) -> None:
    """Raises InputError."""
    if not CLAIM_ID.fullmatch(claim_id):
        raise InputError("claim_id", claim_id, f"must match {CLAIM_ID.pattern}, since it names a folder")


def marks(folder: Path, claim_id: str) -> dict[str, str]:
    """The marks of what `claim_id` runs in `folder`."""
    return {RUNTIME_MARK: folder.name, CLAIM_MARK: claim_id}


def log_path(folder: Path, name: str) -> Path:
    """Raises InputError if `name` is no plain file name."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise InputError("log", name, "must be a plain file name")
    return folder / "logs" / name


def write(path: Path, data: bytes, mode: int) -> None:
    """Write a file that a program may have replaced by something else. Raises OSError."""
    # O_NONBLOCK here and below: a named pipe that a program has put there gives an error instead of an endless wait.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)  # also if the file existed before, or the umask removed bits
        file.write(data)


def read(path: Path, limit: int) -> bytes:
    """At most `limit` bytes of a file that a program may have replaced by something else. Raises OSError."""
    with open(path, "rb", opener=untrusted_opener) as file:
        return file.read(limit) or b""  # None from an empty pipe that a program keeps open


async def upload(files: Upload, target: Path, path: str) -> None:
    """Write files to `target`, and make its folders. No link at the target is followed: a program may have made it, and this process may
    write where that program may not.

    Raises InputError for `path`, the caller's name of `target`, if it can't take them; also raises as `Upload.write`.
    """
    if files.file_name and target.is_dir():
        target /= files.file_name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(files.write, target)
    except OSError as error:
        if error.errno not in _UNUSABLE:
            raise
        raise InputError("path", path, f"can't take the upload: {error}") from error


async def kill_marked(name: str, value: str) -> None:
    """Kill all processes with a mark, and all below them. Raises SandboxError `unkillable`."""
    left = await asyncio.to_thread(proctree.kill_until_gone, lambda: proctree.marked(name, value), _SWEEP_S)
    if left:
        raise SandboxError("unkillable", f"processes {sorted(left)} with {name}={value} can't be killed")


async def remove(folder: Path) -> None:
    """Kill whatever runs in the folder and delete it. Raises SandboxError `unkillable`, `not_removed`."""
    await kill_marked(RUNTIME_MARK, folder.name)
    await asyncio.to_thread(delete, folder)


def labels_of(folder: Path) -> Labels:
    """The labels of a folder. Without readable labels its claim is enough to reap it: its maker may have died before it wrote them, or a
    program inside may have overwritten them."""
    try:
        meta = msgspec.json.decode(read(folder / _META, _META_BYTES), type=_Meta)
    except (OSError, msgspec.DecodeError):
        meta = _Meta()
    return Labels(meta.namespace, meta.session_id, meta.attempt, folder.name)


def delete(folder: Path) -> None:
    """Delete a folder in which nothing runs. Raises SandboxError `not_removed`."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        if folder.exists():  # another worker removes it at the same time
            delete(folder)
    except (OSError, RecursionError):
        # Read-only folders, as in Go's module cache, or folders nested deeper than Python's recursion limit or our limit of open files.
        for command in (["chmod", "-Rf", "u+rwX"], ["rm", "-rf"]):
            ended = subprocess.run([*command, "--", str(folder)], stderr=subprocess.PIPE, check=False)
        if ended.returncode != 0:
            raise SandboxError("not_removed", ended.stderr.decode(errors="replace")) from None
