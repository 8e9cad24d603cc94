"""The runtime `process`: a folder on the worker's host, a clean environment, and programs under a supervisor.

Owns `<root>/<claim id of the maker>/` with `workspace home tmp logs meta.json`. Invariants: a folder's name is the claim that made
it, so half-made and half-removed folders are found and reaped too. Paths that a caller names never lead out of the folder. All
programs inside have the marks `POLAR_RUNTIME` (the maker's claim) and `POLAR_CLAIM` (the claim that started the program) in their
environment.

This keeps sessions apart, but it confines nobody. A program runs as the worker's own user and can read and signal whatever that user
can. A task that isn't trusted needs a container.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

import msgspec

from consumers.runtimes import proctree
from consumers.runtimes.base import Exec, ExecResult, Handle, Labelled, Labels, SandboxError
from consumers.runtimes.forkserver import ForkServer
from consumers.runtimes.launch import launch
from topics.types.errors import InputError, NotReadyError
from topics.types.task import RuntimeSpec

NAME = "process"
RUNTIME_MARK = "POLAR_RUNTIME"
CLAIM_MARK = "POLAR_CLAIM"

_CLAIM_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_FOLDERS = ("workspace", "home", "tmp", "logs")
_META = "meta.json"
_META_BYTES = 4096
_SWEEP_S = 10.0
"""Limit for killing all processes with a mark; see `supervisor.KILL_S`."""


class _Meta(msgspec.Struct):
    """The labels in a runtime's folder."""

    namespace: str = ""
    session_id: str = ""
    attempt: int = 0


class ProcessRuntime:
    """One folder, used by one claim; see `base.Runtime`."""

    def __init__(self, folder: Path, claim_id: str, spec: RuntimeSpec, forks: ForkServer) -> None:
        """Raises InputError if `spec.workdir` leads out of the folder."""
        self._folder = folder
        self._forks = forks
        self._marks = {RUNTIME_MARK: folder.name, CLAIM_MARK: claim_id}
        self._env = dict(spec.env)
        self.workdir = self._inside(spec.workdir or ".", field="runtime.workdir")

    @property
    def handle(self) -> Handle:
        return {"backend": NAME, "host": socket.gethostname(), "id": self._folder.name}

    @property
    def workspace(self) -> PurePosixPath:
        return PurePosixPath(self._folder / "workspace")

    @property
    def home(self) -> PurePosixPath:
        return PurePosixPath(self._folder / "home")

    @property
    def logs(self) -> Path:
        return self._folder / "logs"

    async def is_empty(self) -> bool:
        try:
            with os.scandir(self.workspace) as entries:
                return next(entries, None) is None
        except OSError:  # an earlier program has removed or replaced it
            return False

    async def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o600) -> None:
        target = self._inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, data, mode)

    async def read_file(self, path: str | PurePosixPath, limit: int) -> bytes:
        return _read(self._inside(path), limit)

    async def upload(self, source: Path, path: str | PurePosixPath) -> None:
        target = self._inside(path)
        copy = _copy_folder if source.is_dir() else shutil.copy2
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(copy, source, target)
        except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise InputError("path", str(path), f"can't take {source}: {error}") from error

    async def exec(self, what: Exec, stop: asyncio.Event | None = None) -> ExecResult:
        log = self._log(what.log)
        argv = ("bash", "-o", "pipefail", "-c", what.command) if isinstance(what.command, str) else what.command
        started = time.monotonic()
        ended = await launch(
            {
                "argv": list(argv),
                "env": _host_env(self._folder) | self._env | dict(what.env) | self._marks,
                "cwd": str(self.workdir if what.cwd is None else self._folder_inside(what.cwd)),
                "stdin": os.devnull if what.stdin is None else str(self._inside(what.stdin, field="stdin")),
                "log": str(log),
                "log_limit": what.log_limit,
                "marks": self._marks,
                "worker": os.getpid(),
            },
            self._forks,
            timeout_s=what.timeout_s,
            stop=stop,
            sweep=lambda: _kill_marked(CLAIM_MARK, self._marks[CLAIM_MARK]),
        )
        return ExecResult(
            exit_code=ended.exit_code,
            timed_out=ended.timed_out,
            duration_s=time.monotonic() - started,
            log=log,
            tail=ended.tail.decode(errors="replace"),
        )

    async def kill_all(self) -> None:
        await _kill_marked(RUNTIME_MARK, self._folder.name)

    async def remove(self) -> None:
        await _remove(self._folder)

    def _inside(self, path: str | PurePosixPath, *, field: str = "path") -> Path:
        """`path` on this host, with symbolic links resolved. InputError if it leads out of the folder."""
        if "\0" in str(path):
            raise InputError(field, str(path), "holds a zero byte")
        found = Path(os.path.realpath(self._folder / "workspace" / path))
        if not found.is_relative_to(os.path.realpath(self._folder)):
            raise InputError(
                field,
                str(path),
                "leads out of the sandbox; name a path relative to the workspace, or use a runtime with an image",
            )
        return found

    def _folder_inside(self, cwd: str) -> Path:
        found = self._inside(cwd, field="cwd")
        if not found.is_dir():
            raise InputError("cwd", cwd, "is no folder in the sandbox; runtime.prepare can make it")
        return found

    def _log(self, name: str) -> Path:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise InputError("log", name, "must be a plain file name")
        return self.logs / name


class ProcessBackend:
    """Makes and finds `process` runtimes under `root`, which all workers of a pool on this host share."""

    def __init__(self, root: Path) -> None:
        """Raises NotReadyError on other systems than Linux: only its kernel (≥ 5.3) can guarantee that no process is left behind."""
        if sys.platform != "linux":
            raise NotReadyError(
                f"the runtime 'process' needs Linux, not {sys.platform}; run the workers in a container"
            )
        self._root = root.absolute()
        self._forks = ForkServer()

    async def create(self, labels: Labels, spec: RuntimeSpec) -> ProcessRuntime:
        """Raises SandboxError `runtime_exists` if the claim has made a runtime before, and InputError for a `workdir` outside."""
        _check_claim_id(labels.claim_id)
        folder = self._root / labels.claim_id
        runtime = ProcessRuntime(folder, labels.claim_id, spec, self._forks)
        self._root.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError as error:
            raise SandboxError("runtime_exists", f"claim {labels.claim_id} has made a runtime before") from error
        meta = _Meta(labels.namespace, labels.session_id, labels.attempt)
        (folder / _META).write_bytes(msgspec.json.encode(meta))
        for name in _FOLDERS:
            (folder / name).mkdir()
        runtime.workdir.mkdir(parents=True, exist_ok=True)
        return runtime

    async def attach(self, handle: Handle, claim_id: str, spec: RuntimeSpec) -> ProcessRuntime:
        folder = self._folder_of(handle)
        _check_claim_id(claim_id)
        if not (folder / "workspace").is_dir():
            raise SandboxError(
                "runtime_gone",
                f"no runtime {folder.name} under {self._root} on {socket.gethostname()}; it was made on {handle.get('host')}",
            )
        return ProcessRuntime(folder, claim_id, spec, self._forks)

    async def labelled(self) -> list[Labelled]:
        if not self._root.is_dir():
            return []
        host = socket.gethostname()
        return [
            Labelled(_labels(folder), {"backend": NAME, "host": host, "id": folder.name})
            for folder in sorted(self._root.iterdir())
            if _CLAIM_ID.fullmatch(folder.name) and folder.is_dir()
        ]

    async def remove(self, handle: Handle) -> None:
        await _remove(self._folder_of(handle))

    async def kill_claim(self, claim_id: str) -> None:
        _check_claim_id(claim_id)
        await _kill_marked(CLAIM_MARK, claim_id)

    def _folder_of(self, handle: Handle) -> Path:
        """Raises SandboxError for a foreign handle: it came over the network and names a folder that may be removed."""
        claim_id = handle.get("id", "")
        if _CLAIM_ID.fullmatch(claim_id) is None:
            raise SandboxError("runtime_gone", f"no runtime has the id {claim_id!r:.200}")
        return self._root / claim_id


def _check_claim_id(claim_id: str) -> None:
    if not _CLAIM_ID.fullmatch(claim_id):
        raise InputError("claim_id", claim_id, f"must match {_CLAIM_ID.pattern}, since it names a folder")


def _labels(folder: Path) -> Labels:
    """The labels of a folder. Without readable labels its claim is enough to reap it: its maker may have died before it wrote them, or a
    program inside may have overwritten them."""
    try:
        meta = msgspec.json.decode(_read(folder / _META, _META_BYTES), type=_Meta)
    except (OSError, msgspec.DecodeError):
        meta = _Meta()
    return Labels(meta.namespace, meta.session_id, meta.attempt, folder.name)


def _host_env(folder: Path) -> dict[str, str]:
    """The variables that a program gets from the worker's own environment, or instead of them."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container that runs as a number
        user = str(os.getuid())
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "USER": user,
        # A workspace inside another project's checkout doesn't belong to it: agents would read it and commit to it.
        "GIT_CEILING_DIRECTORIES": str(folder),
    }


def _write(path: Path, data: bytes, mode: int) -> None:
    # O_NONBLOCK here and below: a named pipe that a program has put there gives an error instead of an endless wait.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)  # also if the file existed before, or the umask removed bits
        file.write(data)


def _read(path: Path, limit: int) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read(limit) or b""  # None from an empty pipe that a program keeps open


def _copy_folder(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


async def _kill_marked(name: str, value: str) -> None:
    left = await asyncio.to_thread(proctree.kill_until_gone, lambda: proctree.marked(name, value), _SWEEP_S)
    if left:
        raise SandboxError("unkillable", f"processes {sorted(left)} with {name}={value} can't be killed")


async def _remove(folder: Path) -> None:
    await _kill_marked(RUNTIME_MARK, folder.name)
    await asyncio.to_thread(_delete, folder)


def _delete(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        if folder.exists():  # another worker removes it at the same time
            _delete(folder)
    except (PermissionError, RecursionError):
        # Read-only folders, as in Go's module cache, or folders nested deeper than Python's recursion limit.
        for command in (["chmod", "-Rf", "u+rwX"], ["rm", "-rf"]):
            ended = subprocess.run([*command, "--", str(folder)], stderr=subprocess.PIPE, check=False)
        if ended.returncode != 0:
            raise SandboxError("not_removed", ended.stderr.decode(errors="replace")) from None
