"""Files and programs of a session's containers, for one claim: each takes one request to a keeper (`keeper.py`)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from consumers.runtimes import session_folder
from consumers.runtimes.base import OUT_OF_MEMORY, Exec, ExecResult, Handle, ModelAccess, SandboxError, starts
from consumers.runtimes.cell.bubblewrap import HOME, PATH, TMP
from consumers.runtimes.cell.limits import FILES
from consumers.runtimes.cell.ways_out import WaysOut, reached_at
from consumers.runtimes.container.keeper import LOG
from consumers.runtimes.container.line import SOCKET, KeeperForks, Line
from consumers.runtimes.launch import launch
from consumers.runtimes.upload import Upload
from topics.types.errors import InputError, NotReadyError
from topics.types.runtime import Network, RuntimeSpec

NAME = "docker"
CHANGED = "changed"
"""A file in a session's folder: its maker has done something in its container."""

_UPLOADED = 1 << 20
"""Bytes of an upload that are read at once."""


class Facts(msgspec.Struct):
    """Facts about a session's containers that don't change after the first is made."""

    image: str
    env: dict[str, str]
    workspace: str
    files: int
    """The engine's limit of open files."""
    tools: list[str]


def needed_folders(workspace: PurePosixPath, spec: RuntimeSpec) -> list[str]:
    """The folders that a session's containers need: those that the image lacks are made, the outer ones first."""
    workdir = PurePosixPath(os.path.normpath(workspace / (spec.workdir or ".")))
    own = [folder for folder in workdir.parents if folder.is_relative_to(workspace)]
    return list(dict.fromkeys(map(str, (workspace, HOME, *reversed(own), workdir))))


@dataclass(frozen=True)
class Names:
    """The names of a runtime's things: `session` is its folder, `claim` the one that uses it."""

    root: Path
    session: Path
    claim: str

    @property
    def is_maker(self) -> bool:
        return self.claim == self.session.name

    def container(self, part: str) -> str:
        """The name of a container; `part`: its folder in the session's."""
        root = hashlib.sha256(str(self.root).encode()).hexdigest()[:8]
        return f"polar-{root}-{self.session.name}-{part.replace('/', '-')}"


class ContainerRuntime:
    """The containers of one session, used by one claim; see `base.Runtime`."""

    def __init__(
        self,
        names: Names,
        handle: Handle,
        spec: RuntimeSpec,
        facts: Facts,
        network: Network,
        container: Callable[[], Awaitable[Line]],
        remove: Callable[[], Awaitable[None]],
    ) -> None:
        """`network`: the policy for programs that aren't the harness. `container`: gives the claim's container, at the first use; `remove`
        removes the session. Raises InputError for `spec.workdir`."""
        self._names = names
        self._handle = handle
        self._container = container
        self._remove = remove
        self._spec = spec
        self._facts = facts
        self._line: Line | None = None
        self._network = network
        self._making = asyncio.Lock()
        self._workdir = self._inside(spec.workdir or ".", field="runtime.workdir")

    @property
    def handle(self) -> Handle:
        return self._handle

    @property
    def workspace(self) -> PurePosixPath:
        return PurePosixPath(self._facts.workspace)

    @property
    def home(self) -> PurePosixPath:
        return HOME

    @property
    def written(self) -> tuple[PurePosixPath, ...]:
        return (self.workspace, HOME, TMP)

    @property
    def logs(self) -> Path:
        return self._names.session / "logs"

    def reached_at(self, model: ModelAccess) -> ModelAccess:
        return reached_at(self._spec, model)

    async def is_empty(self) -> bool:
        answer, _ = await (await self._open()).ask({"op": "look", "claim": self._names.claim})
        return bool(answer["is_empty"])

    async def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o600) -> None:
        message = {"op": "write", "path": self._inside(path), "mode": mode, "size": len(data)}
        await self._ask(message, send=lambda line: line.sendall(data))

    async def read_file(self, path: str | PurePosixPath, limit: int) -> bytes:
        _, data = await self._ask({"op": "read", "path": self._inside(path), "limit": limit}, receive=True)
        return data

    async def upload(self, files: Upload, path: str | PurePosixPath) -> None:
        def send(line: socket.socket) -> None:
            with files.opened() as blob:
                while data := blob.read(_UPLOADED):
                    line.sendall(data)

        message = {"op": "unpack", "path": self._inside(path), "file_name": files.file_name}
        try:
            await self._ask(message, send=send, within_s=None)
        except InputError as error:
            # The reason names the content, and the caller knows the path as it gave it.
            if error.field == "content":
                raise InputError(error.field, files.ref, f"{error.reason} ({files.ref})") from error
            raise InputError(error.field, str(path), error.reason) from error

    async def exec(self, what: Exec, stop: asyncio.Event | None = None) -> ExecResult:
        log = session_folder.log_path(self._names.session, what.log)
        argv = ("bash", "-o", "pipefail", "-c", what.command) if isinstance(what.command, str) else what.command
        policy = self._spec.network or Network.PROXY_ONLY if what.model else self._network
        ways = WaysOut(policy, self._spec.allowed_hosts, what.model)
        cwd = self._workdir if what.cwd is None else self._inside(what.cwd, field="cwd")
        stdin = os.devnull if what.stdin is None else self._inside(what.stdin, field="stdin")
        self._check_tools(what.tools)
        line = await self._open()
        before, _ = await line.ask({"op": "memory"})
        started = time.monotonic()
        try:
            ended = await launch(
                {
                    "argv": list(argv),
                    "env": self._environment(what, ways),
                    "cwd": cwd,
                    "stdin": stdin,
                    "log": LOG,
                    "log_limit": what.log_limit,
                    "marks": {},
                    "worker": None,
                    "rlimits": self._rlimits(),
                    "guard": None,
                    "cell": None,
                },
                KeeperForks(line, self._names.claim, ways.ports or [], log),
                timeout_s=what.timeout_s,
                stops=[stop] if stop else [],
                sweep=lambda: line.kill(self._names.claim),
                ways_out=ways.served if ways.ports else None,
            )
        except SandboxError as error:
            if error.code == "not_started" and not await self._is_folder(line, cwd):
                raise InputError(
                    "cwd", str(what.cwd), "is no folder in the sandbox; runtime.prepare can make it"
                ) from None
            raise
        after, _ = await line.ask({"op": "memory"})
        exceeded = ""
        if after.get("oom_kill", 0) > before.get("oom_kill", 0):
            # cgroup v1 has no count `oom`, and doesn't tell whose memory had ended.
            if "oom" in after and after["oom"] == before.get("oom"):
                raise SandboxError(
                    "host_out_of_memory", "the host ran out of memory and killed a program that was within its limit"
                )
            if ended.exit_code == OUT_OF_MEMORY:
                exceeded = f"The session's programs needed more than {self._memory_limit()}."
        return ended.result(started, log, exceeded)

    async def can_start(self) -> bool:
        return await starts(self)

    async def kill_all(self) -> None:
        await asyncio.gather(*(line.kill(None) for line in lines_of(self._names.session)))

    async def remove(self) -> None:
        await self._remove()

    async def _open(self) -> Line:
        """The claim's container. An evaluation's is made at its first use: many ask only how the run ended."""
        async with self._making:
            if self._line is None:
                self._line = await self._container()
        if self._names.is_maker:
            (self._names.session / CHANGED).touch()
        return self._line

    async def _ask(self, message: dict[str, Any], **options: Any) -> tuple[dict[str, Any], bytes]:
        return await (await self._open()).ask({"claim": self._names.claim, **message}, **options)

    async def _is_folder(self, line: Line, path: str) -> bool:
        answer, _ = await line.ask({"op": "look", "claim": self._names.claim, "path": path})
        return bool(answer["is_folder"])

    def _environment(self, what: Exec, ways: WaysOut) -> dict[str, str]:
        own = {"PATH": PATH, "LANG": "C.UTF-8"}
        if what.is_ours:
            return own | {"HOME": str(HOME)} | dict(what.env)
        given = {"HOME": str(HOME)} | ways.environment | self._spec.env | dict(what.env)
        return self._spec.with_path(own | self._facts.env | given)

    def _memory_limit(self) -> str:
        if self._spec.memory_mb is None:
            return "three quarters of the host's memory, their limit"
        return f"{self._spec.memory_mb} MB of memory, their limit (memory_mb)"

    def _rlimits(self) -> list[tuple[int, int]]:
        wanted = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_NOFILE: min(self._spec.files or FILES, self._facts.files),
        }
        if self._spec.storage_mb is not None:
            wanted[resource.RLIMIT_FSIZE] = self._spec.storage_mb * 1024 * 1024
        return list(wanted.items())

    def _check_tools(self, tools: tuple[Path, ...]) -> None:
        for tool in tools:
            if not any(tool.is_relative_to(top) for top in self._facts.tools):
                raise NotReadyError(f"{tool} isn't in a folder that containers see: {', '.join(self._facts.tools)}")

    def _inside(self, path: str | PurePosixPath, *, field: str = "path") -> str:
        """`path` in the container, absolute. Any path is inside; the keeper reads and writes as the programs' own user."""
        if "\0" in str(path):
            raise InputError(field, str(path), "holds a zero byte")
        return str(self.workspace / path)


def lines_of(session: Path) -> list[Line]:
    """The keepers of all containers of a session."""
    return [Line(path.parent, "/") for path in (*session.glob(f"*/{SOCKET}"), *session.glob(f"views/*/{SOCKET}"))]
