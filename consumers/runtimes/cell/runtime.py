"""The runtime `cell`: a folder on the worker's host, of which programs see their own part and little else.

The folder holds `workspace`, `home` (as `prepare` left it), `logs`, and `views/<claim>/` (`view`) with each later claim's own copy of the
home, its own `tmp`, and the layers that take its changes. The rest of what programs see is the host's programs, or an image (`roots`).
Each program runs in a bubblewrap of its own (`enter`, `bubblewrap`), so with its PID namespace all of it ends. Invariants: programs see no
file of the host but those of `bubblewrap.system`, the tools that they are given and their view; logs lie outside; the key of the session
is inside only with the host's network (`ways_out`).
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

from consumers.runtimes import proctree, session_folder
from consumers.runtimes.base import (
    HOST_DISK_FULL,
    OUT_OF_MEMORY,
    STORAGE_EXCEEDED,
    Exec,
    ExecResult,
    Handle,
    ModelAccess,
    SandboxError,
    starts,
)
from consumers.runtimes.cell import bubblewrap, cgroup, layered, limits, preparations
from consumers.runtimes.cell.bubblewrap import HOME, TMP
from consumers.runtimes.cell.cgroup import Group
from consumers.runtimes.cell.enter import CellOrders, Mount
from consumers.runtimes.cell.gpus import GpuView
from consumers.runtimes.cell.host import CellHost
from consumers.runtimes.cell.limits import Limits
from consumers.runtimes.cell.roots import Root
from consumers.runtimes.cell.storage import StorageWatch, is_full
from consumers.runtimes.cell.view import View, give, give_all
from consumers.runtimes.cell.ways_out import WaysOut, reached_at
from consumers.runtimes.launch import launch
from consumers.runtimes.session_folder import CLAIM_MARK, RUNTIME_MARK, kill_marked
from consumers.runtimes.upload import Upload
from topics.types.errors import InputError
from topics.types.runtime import Network, RuntimeSpec, Seen

_GROUPS = "groups"
"""A file in a session's folder, where no program sees it: the folders of its control groups, one a line."""
_OWN = {"HOME": str(HOME), "TMPDIR": str(TMP)}


class CellRuntime:
    """One folder, used by one claim; see `base.Runtime`."""

    def __init__(self, host: CellHost, folder: Path, claim_id: str, spec: RuntimeSpec, view: View, root: Root) -> None:
        """Raises InputError if `spec.workdir` leads out of the sandbox."""
        self._host = host
        self._folder = folder
        self._marks = session_folder.marks(folder, claim_id)
        self._spec = spec
        self._view = view
        self._root = root
        self._user_id = host.user_id(folder.name)
        self._limits = limits_of(spec)
        self._recorded: list[str] = []
        self._workdir = self._inside(spec.workdir or ".", field="runtime.workdir")

    @property
    def handle(self) -> Handle:
        return self._host.folders.handle(self._folder)

    @property
    def workspace(self) -> PurePosixPath:
        return self._root.workspace

    @property
    def home(self) -> PurePosixPath:
        return HOME

    @property
    def written(self) -> tuple[PurePosixPath, ...]:
        if self._root.image is not None and self._spec.verifier_sees is Seen.EVERYTHING:
            return (PurePosixPath("/"),)
        return (self.workspace, HOME, TMP)

    @property
    def logs(self) -> Path:
        return self._folder / "logs"

    def reached_at(self, model: ModelAccess) -> ModelAccess:
        return reached_at(self._spec, model)

    async def is_empty(self) -> bool:
        if self._root.image is not None:
            return False
        with os.scandir(self._folder / "workspace") as entries:
            return next(entries, None) is None

    async def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o600) -> None:
        await self._make_view()
        if self._is_layered(inside := self._inside(path)):
            await layered.write(self, self._root.script, inside, data, mode)
            return
        target = self._on_host(path)
        async with self._space():
            self._make_folders(target.parent)
            session_folder.write(target, data, mode)
            give(target, self._user_id)

    async def read_file(self, path: str | PurePosixPath, limit: int) -> bytes:
        await self._make_view()
        if not self._is_layered(inside := self._inside(path)):
            return session_folder.read(self._on_host(path), limit)
        if inside.is_relative_to(self.workspace):
            return await layered.read(self, self._root.script, inside, limit)
        image, own = self._root.image, self._view.root
        assert image is not None, "a layered path outside of the workspace"
        assert own is not None, "a view of an image"
        layers = [*image.layers, *reversed(own.lower), own.overlay.upper]
        return await asyncio.to_thread(layered.read_image, layers, inside, limit)

    async def upload(self, files: Upload, path: str | PurePosixPath) -> None:
        await self._make_view()
        if self._is_layered(inside := self._inside(path)):
            await layered.upload(self, self._root.script, files, inside)
            return
        target = self._on_host(path)
        async with self._space():
            self._make_folders(target.parent)
            await session_folder.upload(files, target, str(path))
            await asyncio.to_thread(give_all, target, self._user_id)

    async def exec(self, what: Exec, stop: asyncio.Event | None = None) -> ExecResult:
        count = self._spec.gpus if what.has_gpus else 0
        async with self._host.gpus.held(
            count, in_image=self._root.image is not None, stop=stop, limit_s=what.timeout_s
        ) as gpus:
            return await self._exec(what, stop, gpus)

    async def _exec(self, what: Exec, stop: asyncio.Event | None, gpus: GpuView) -> ExecResult:
        await self._make_view()
        log = session_folder.log_path(self._folder, what.log)
        argv = self._root.shell_command(what.command) if isinstance(what.command, str) else what.command
        policy = self._spec.network or Network.PROXY_ONLY if what.model else self._view.network
        ways = WaysOut(policy, self._spec.allowed_hosts, what.model)
        cwd = self._workdir if what.cwd is None else self._inside(what.cwd, field="cwd")
        if not self._is_layered(cwd) and not self._on_host(cwd, field="cwd").is_dir():
            raise _no_folder(what.cwd)
        if what.stdin is not None and self._is_layered(self._inside(what.stdin, field="stdin")):
            raise InputError(
                "stdin", what.stdin, "lies in a layer that only programs inside see; redirect it in the command"
            )
        tools = [*gpus.mounts, *self._tools(what.tools)]
        if what.is_ours:
            environment = self._environment_of_ours() | dict(what.env)
        else:
            environment = self._spec.with_path(self._environment() | ways.environment | self._spec.env | dict(what.env))
        environment = gpus.search(environment)
        group = limits.host().group(self._folder.name, self._limits)
        async with self._space():
            self._record(group)
        try:
            options = bubblewrap.options(environment, cwd, self._root.user_id, gpus.devices)
            cell = self._cell(options, tools, ways, group)
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
                self._host.forks,
                timeout_s=what.timeout_s,
                stops=[full, *([stop] if stop else [])],
                sweep=lambda: kill_marked(CLAIM_MARK, self._marks[CLAIM_MARK]),
                ways_out=ways.served if ways.ports else None,
            )
        except SandboxError as error:
            if (
                error.code == "not_started"
                and self._is_layered(cwd)
                and not await layered.is_folder(self, self._root.script, cwd)
            ):
                raise _no_folder(what.cwd) from None
            if error.code == "not_started" and is_full(self._folder):
                raise await self._disk_full(watch) from None
            raise
        finally:
            problem = await _cancelled(storage)
        if not problem and (watch.was_full or is_full(self._folder)):
            problem = await asyncio.to_thread(watch.walk)
            if not problem:
                raise host_disk_full(self._folder)
        if group.host_out_of_memory():
            raise SandboxError(
                "host_out_of_memory", "the host ran out of memory and killed a program that was within its limit"
            )
        if group.oom_killed() and ended.exit_code == OUT_OF_MEMORY:
            memory_mb = limits.host().filled(self._limits).memory_mb
            problem = f"The session's programs needed more than {memory_mb} MB of memory, their limit (memory_mb)."
        return ended.result(started, log, problem)

    def _record(self, group: Group) -> None:
        """Record where the group lies, before anything is in it: whoever removes the sandbox may be in another group."""
        if self._recorded != (folders := group.folders):
            with (self._folder / _GROUPS).open("a") as file:
                file.writelines(f"{folder}\n" for folder in folders)
            self._recorded = folders

    async def can_start(self) -> bool:
        if self._root.image is None:
            return await starts(self)
        # What the evaluation runs of the agent's may have changed its own layers over the image as well.
        claim_id = f"control-{secrets.token_hex(8)}"
        view = self._view.control(claim_id, self._user_id)
        return await starts(CellRuntime(self._host, self._folder, claim_id, self._spec, view, self._root))

    async def kill_all(self) -> None:
        await kill_all(self._folder)

    async def remove(self) -> None:
        await remove(self._folder)

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
            if not is_lack_of_space(error):
                raise
            raise await self._disk_full(self._storage_watch(None)) from error

    async def _disk_full(self, watch: StorageWatch) -> SandboxError:
        if problem := await asyncio.to_thread(watch.walk):
            return SandboxError(STORAGE_EXCEEDED, problem)
        return host_disk_full(self._folder)

    def make_workdir(self) -> None:
        """Make the task's working directory in a new sandbox."""
        # With an image it is a folder in an empty layer, where the image's own folder of that name shows through.
        inside = self._workdir.relative_to(self.workspace)
        self._make_folders(Path(os.path.normpath(self._folder / "workspace" / inside)))

    def _cell(self, options: list[str], tools: list[Mount], ways: WaysOut, group: Group) -> CellOrders:
        view, root = self._view, self._root
        has_image = root.image is not None
        mounts = [
            *root.mounts,
            bubblewrap.mount(view.workspace, root.workspace, writable=True, overlay=view.overlay, over_image=has_image),
            bubblewrap.mount(view.home, HOME, writable=True),
            bubblewrap.mount(view.tmp, TMP, writable=True),
        ]
        if ways.ports is None:
            mounts += bubblewrap.resolver()
        # Last: a tool may lie below /tmp on this host.
        mounts += tools
        programs, program_links = self._host.programs
        return CellOrders(
            bubblewrap=self._host.bubblewrap,
            programs=programs,
            program_links=program_links,
            image=root.image_orders(view.root),
            folders=list(root.folders),
            links=dict(root.links),
            files=dict(root.files),
            mounts=mounts,
            options=options,
            uid=self._user_id,
            ports=ways.ports,
            groups=group.join_paths,
            rlimits=limits.host().rlimits(self._limits),
            seccomp=self._host.filter_of_images if has_image else self._host.filter,
        )

    def _tools(self, paths: tuple[Path, ...]) -> list[Mount]:
        """The mounts of the host's tools and the program's. Raises InputError if they can't run in the session's image."""
        image, library = self._root.image, self._host.c_library
        needed = library.mounts_for(image.layers, str(self._spec.image)) if image and library and paths else []
        return needed + bubblewrap.tools((*self._host.tools, *paths))

    def _environment(self) -> dict[str, str]:
        return {**self._root.environment, **_OWN}

    def _environment_of_ours(self) -> dict[str, str]:
        return {"PATH": self._root.search, **_OWN}

    def _inside(self, path: str | PurePosixPath, *, field: str = "path") -> PurePosixPath:
        """`path` as programs inside see it, absolute. InputError if it is outside of the session's files."""
        found = PurePosixPath(os.path.normpath(self.workspace / path))
        if "\0" in str(path) or not self._root.is_inside(found):
            reason = "leads out of the sandbox; name a path relative to the workspace, or below /home/agent or /tmp"
            raise InputError(field, str(path), reason)
        return found

    def _is_layered(self, inside: PurePosixPath) -> bool:
        """Whether only programs inside see what is at this path, since it lies in layers."""
        return not any(inside.is_relative_to(top) for top in self._plain)

    @property
    def _plain(self) -> dict[PurePosixPath, Path]:
        """The folders that programs write to without a layer, and their places on this host."""
        view = self._view
        folders = {HOME: view.home, TMP: view.tmp}
        if view.overlay is None:
            (folders[self.workspace],) = view.workspace
        return folders

    def _on_host(self, path: str | PurePosixPath, *, field: str = "path") -> Path:
        """`path`, which isn't layered, on this host, with symbolic links resolved. InputError if it leads out of the cell's folder of
        that name."""
        inside = self._inside(path, field=field)
        assert not self._is_layered(inside), "programs inside see something else"
        tops = self._plain
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


def host_disk_full(folder: Path) -> SandboxError:
    return SandboxError(
        HOST_DISK_FULL,
        f"the disk of {folder.parent} is full, and not by this session's files; make room on this worker's host",
    )


def is_lack_of_space(error: Exception) -> bool:
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


async def remove(folder: Path) -> None:
    """As `Runtime.remove`, for the cells in a folder. Raises SandboxError `unkillable`, `not_removed`."""
    groups = _groups_of(folder)
    await kill_all(folder)
    preparations.withhold(folder)
    await asyncio.to_thread(session_folder.delete, folder)
    await asyncio.to_thread(cgroup.remove, groups)


async def kill_all(folder: Path) -> None:
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


def limits_of(spec: RuntimeSpec) -> Limits:
    return Limits(spec.cpus, spec.memory_mb, spec.pids, spec.storage_mb, spec.files)


async def _cancelled(watch: asyncio.Task[str]) -> str:
    """What the watch has found until now."""
    watch.cancel()
    await asyncio.wait({watch})
    return "" if watch.cancelled() else watch.result()
