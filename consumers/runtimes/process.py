"""The runtime `process`: a folder on the worker's host, a clean environment, and programs under a supervisor.

The folder holds `workspace home tmp logs` (`session_folder.py`). Invariants: paths that a caller names never lead out of the folder, and
all programs inside have the folder's marks in their environment.

This keeps sessions apart, but it confines nobody. A program runs as the worker's own user and can read and signal whatever that user
can. A task that isn't trusted needs a container.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import sys
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar

from consumers.runtimes import session_folder
from consumers.runtimes.base import (
    UNENFORCED,
    Exec,
    ExecResult,
    Handle,
    Labelled,
    Labels,
    ModelAccess,
    Step,
    starts,
)
from consumers.runtimes.forkserver import ForkServer
from consumers.runtimes.launch import launch
from consumers.runtimes.session_folder import CLAIM_MARK, RUNTIME_MARK, SessionFolders, check_claim_id, kill_marked
from consumers.runtimes.supervisor import GuardOrders
from consumers.runtimes.upload import Upload
from topics.types.errors import InputError, NotReadyError
from topics.types.runtime import LIMITS, Network, RuntimeSpec

NAME = "process"
_FOLDERS = ("workspace", "home", "tmp", "logs")


class ProcessRuntime:
    """One folder, used by one claim; see `base.Runtime`."""

    def __init__(
        self, folders: SessionFolders, folder: Path, claim_id: str, spec: RuntimeSpec, forks: ForkServer
    ) -> None:
        """Raises InputError if `spec.workdir` leads out of the folder."""
        self.folder = folder
        self._folders = folders
        self._forks = forks
        self._marks = session_folder.marks(folder, claim_id)
        self._spec = spec
        self.workdir = self._inside(spec.workdir or ".", field="runtime.workdir")

    @property
    def handle(self) -> Handle:
        return self._folders.handle(self.folder)

    @property
    def workspace(self) -> PurePosixPath:
        return PurePosixPath(self.folder / "workspace")

    @property
    def home(self) -> PurePosixPath:
        return PurePosixPath(self.folder / "home")

    @property
    def written(self) -> tuple[PurePosixPath, ...]:
        return (PurePosixPath(self.folder), PurePosixPath("/tmp"))  # noqa: S108 - where any program can

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def reached_at(self, model: ModelAccess) -> ModelAccess:
        return model

    async def is_empty(self) -> bool:
        try:
            with os.scandir(self.workspace) as entries:
                return next(entries, None) is None
        except OSError:  # an earlier program has removed or replaced it
            return False

    async def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o600) -> None:
        target = self._inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        session_folder.write(target, data, mode)

    async def read_file(self, path: str | PurePosixPath, limit: int) -> bytes:
        return session_folder.read(self._inside(path), limit)

    async def upload(self, files: Upload, path: str | PurePosixPath) -> None:
        await session_folder.upload(files, self._inside(path), str(path))

    async def exec(self, what: Exec, stop: asyncio.Event | None = None) -> ExecResult:
        log = session_folder.log_path(self.folder, what.log)
        argv = ("bash", "-o", "pipefail", "-c", what.command) if isinstance(what.command, str) else what.command
        started = time.monotonic()
        ended = await launch(
            {
                "argv": list(argv),
                "env": self._environment_of(what) | self._marks,
                "cwd": str(self.workdir if what.cwd is None else self._folder_inside(what.cwd)),
                "stdin": os.devnull if what.stdin is None else str(self._inside(what.stdin, field="stdin")),
                "log": str(log),
                "log_limit": what.log_limit,
                "marks": self._marks,
                "worker": os.getpid(),
                "rlimits": [],
                "guard": self.guard(what),
                "cell": None,
            },
            self._forks,
            timeout_s=what.timeout_s,
            stops=[stop] if stop else [],
            sweep=lambda: kill_marked(CLAIM_MARK, self._marks[CLAIM_MARK]),
        )
        return ended.result(started, log)

    def _environment_of(self, what: Exec) -> dict[str, str]:
        if what.is_ours:
            return self.environment() | dict(what.env)
        return self._spec.with_path(self.environment() | self._spec.env | dict(what.env))

    def environment(self) -> dict[str, str]:
        """The variables that a program gets from the worker's own environment, or instead of them."""
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # a container that runs as a number
            user = str(os.getuid())
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "USER": user,
            # A workspace inside another project's checkout doesn't belong to it: agents would read it and commit to it.
            "GIT_CEILING_DIRECTORIES": str(self.folder),
        }

    def guard(self, what: Exec) -> GuardOrders | None:  # noqa: ARG002 - for `guarded.py`
        """The restrictions of a program; None: it may do all that the worker's user may."""
        return None

    async def can_start(self) -> bool:
        return await starts(self)

    async def kill_all(self) -> None:
        await kill_marked(RUNTIME_MARK, self.folder.name)

    async def remove(self) -> None:
        await session_folder.remove(self.folder)

    def _inside(self, path: str | PurePosixPath, *, field: str = "path") -> Path:
        """`path` on this host, with symbolic links resolved. InputError if it leads out of the folder."""
        if "\0" in str(path):
            raise InputError(field, str(path), "holds a zero byte")
        found = Path(os.path.realpath(self.folder / "workspace" / path))
        if not found.is_relative_to(os.path.realpath(self.folder)):
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


class ProcessBackend:
    """Makes and finds `process` runtimes under `root`, which all workers of a pool on this host share."""

    name: ClassVar[str] = NAME
    enforced: ClassVar[tuple[str, ...]] = ()
    """Names of UNENFORCED."""

    def __init__(self, root: Path) -> None:
        """Raises NotReadyError on other systems than Linux: only its kernel (≥ 5.3) can guarantee that no process is left behind."""
        if sys.platform != "linux":
            raise NotReadyError(
                f"the runtime 'process' needs Linux, not {sys.platform}; run the workers in a container"
            )
        self.folders = SessionFolders(root, self.name)
        self.forks = ForkServer()

    async def create(self, labels: Labels, spec: RuntimeSpec, steps: Sequence[Step] = ()) -> ProcessRuntime:
        """Raises SandboxError `runtime_exists` if the claim has made a runtime before, and InputError for a `workdir` outside."""
        check_claim_id(labels.claim_id)
        runtime = self._runtime(self.folders.root / labels.claim_id, labels.claim_id, spec, spec.setup_network)
        self.folders.new(labels, _FOLDERS)
        runtime.workdir.mkdir(parents=True, exist_ok=True)
        for step in steps:
            await step(runtime)
        return runtime

    async def attach(self, handle: Handle, claim_id: str, spec: RuntimeSpec, *, fresh: bool = False) -> ProcessRuntime:
        """`fresh` changes no file here: programs may have written to all of them, so an evaluation can only trust them."""
        check_claim_id(claim_id)
        network = spec.verifier_network if fresh else Network.NONE
        return self._runtime(self.folders.live(handle), claim_id, spec, network)

    @classmethod
    def gaps(cls) -> list[str]:
        """As `unenforced`, on every host and for every task."""
        return [name for name in (*UNENFORCED, *LIMITS) if name not in cls.enforced]

    def unenforced(self, spec: RuntimeSpec) -> list[str]:  # noqa: ARG002
        return self.gaps()

    async def labelled(self) -> list[Labelled]:
        return self.folders.labelled()

    async def remove(self, handle: Handle) -> None:
        await session_folder.remove(self.folders.found(handle))

    async def kill_claim(self, claim_id: str) -> None:
        check_claim_id(claim_id)
        await kill_marked(CLAIM_MARK, claim_id)

    def _runtime(self, folder: Path, claim_id: str, spec: RuntimeSpec, network: Network) -> ProcessRuntime:  # noqa: ARG002
        """`network`: the policy for programs that aren't the harness. Nothing here can keep one."""
        return ProcessRuntime(self.folders, folder, claim_id, spec, self.forks)
