"""The runtime `apptainer`: a session in containers of its task's image, started by the command line of Apptainer.

The containers are those of the runtime `docker` (`container/sandbox.py`): their first process, the keeper, forks a supervisor for each
program, and the worker serves the ways out. A session has a container for `prepare`, then one for the run, and one for each evaluation that
needs it. Each has an overlay of its own over the image. That of `prepare` lies under all later ones and doesn't change any more; the run's
changes to the workspace are carried into an evaluation (`container/carrying.py`).

Invariants: a container has no network but loopback, unless the policy is `host`; its programs have no capability, and see of this host the
worker's Python and the tools, read-only. Programs are root inside, which is the worker's user on this host. Everything that runs for a
session has its mark, and lies in its folder: `<root>/<claim>/` with `logs`, and a folder for each container.

Not enforced: system calls, and limits but `files`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from weakref import WeakValueDictionary

import msgspec

from consumers.runtimes import session_folder
from consumers.runtimes.apptainer import command, installation, place
from consumers.runtimes.apptainer.images import SifStore
from consumers.runtimes.apptainer.place import OVERLAY, Plan
from consumers.runtimes.base import Handle, Labelled, Labels, Step
from consumers.runtimes.container import carrying
from consumers.runtimes.container.line import Line
from consumers.runtimes.container.sandbox import ContainerRuntime, Facts, Names, lines_of, needed_folders
from consumers.runtimes.container.toolbox import Toolbox, host_tools
from consumers.runtimes.images.store import ImageStore
from consumers.runtimes.images.workspace import workspace_of
from consumers.runtimes.session_folder import SessionFolders, check_claim_id
from topics.environment import cache, private_files
from topics.types.errors import InputError, NotReadyError
from topics.types.runtime import Network, RuntimeSpec

NAME = "apptainer"
MAIN, RUN, VIEWS = "main", "run", "views"
"""Folders in a session's: of the container of `prepare`, of the run's, and those of evaluations."""
UNENFORCED = ("cpus", "memory_mb", "pids", "storage_mb", "system_calls")
_FACTS = "container.json"
_PREPARED = "prepared"
"""A file that says that the run's container is ready."""


class ApptainerBackend:
    """Makes and finds the containers of sessions whose folders lie under `root`, which all workers of a pool on this host share."""

    def __init__(self, root: Path, images: ImageStore | None = None) -> None:
        """`images`: of this host; None: those that any worker may use. Raises NotReadyError on another system than Linux, and for paths
        that Apptainer can't use."""
        if sys.platform != "linux":
            raise NotReadyError(f"the runtime 'apptainer' needs Linux, not {sys.platform}")
        self.folders = SessionFolders(root, NAME, needed=_FACTS)
        self._images = SifStore(images or ImageStore(cache.root() / "images", {}, trusts_tasks=False))
        self._toolbox = Toolbox(self.folders.root)
        self._tools = host_tools()
        for path in (str(self.folders.root), str(cache.root()), *self._tools):
            if not command.is_usable(path):
                raise NotReadyError(
                    f"Apptainer can't use the path {path!r}: it has a space, a comma, a colon or a quote"
                )
        self._is_installed = False
        self._preparing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, labels: Labels, spec: RuntimeSpec, steps: Sequence[Step] = ()) -> ContainerRuntime:
        """Raises NotReadyError for what this host lacks, InputError for the image, SandboxError `runtime_exists` and `not_made`, and as
        `ImageStore.get`."""
        check_claim_id(labels.claim_id)
        if not spec.image:
            raise InputError(
                "runtime.image", spec.image, "a container needs an image; name one, like image: python:3.12"
            )
        if not self._is_installed:
            await asyncio.to_thread(installation.check)
            self._is_installed = True
        sif = await self._images.get(spec.image)
        workspace = workspace_of(sif.workdir, spec)
        facts = Facts(str(sif.path), sif.environment, str(workspace), 0, self._tools)
        names = Names(self.folders.root, self.folders.root / labels.claim_id, labels.claim_id)
        runtime = self._runtime(names, spec, facts, MAIN, spec.setup_network)
        self.folders.new(labels, ("logs", VIEWS))
        facts.files = await self._start(names, MAIN, spec, facts, spec.setup_network)
        private_files.replace(names.session / _FACTS, msgspec.json.encode(facts))
        for step in steps:
            await step(runtime)
        return runtime

    async def attach(
        self, handle: Handle, claim_id: str, spec: RuntimeSpec, *, fresh: bool = False
    ) -> ContainerRuntime:
        check_claim_id(claim_id)
        names = Names(self.folders.root, self.folders.live(handle), claim_id)
        facts = msgspec.json.decode((names.session / _FACTS).read_bytes(), type=Facts)
        if fresh:
            return self._runtime(names, spec, facts, None, spec.verifier_network)
        if names.is_maker:
            return self._runtime(names, spec, facts, MAIN, spec.setup_network)
        await self._prepared(names, spec, facts)
        return self._runtime(names, spec, facts, RUN, Network.NONE)

    def _runtime(
        self, names: Names, spec: RuntimeSpec, facts: Facts, part: str | None, network: Network
    ) -> ContainerRuntime:
        """`part`: the container's folder in the session's; None: it is started at the first use, for an evaluation."""

        async def opened() -> Line:
            if part is None:
                return await self._evaluation(names, spec, facts)
            return Line(names.session / part, facts.workspace)

        handle = self.folders.handle(names.session)
        return ContainerRuntime(names, handle, spec, facts, network, opened, lambda: self.remove(handle))

    async def _prepared(self, names: Names, spec: RuntimeSpec, facts: Facts) -> Line:
        """The run's container, with the workspace recorded before anything else works in it."""
        line = Line(names.session / RUN, facts.workspace)
        async with self._preparing.setdefault(names.session.name, asyncio.Lock()):
            if not (names.session / _PREPARED).exists():
                await place.end(names.session, MAIN)  # its overlay must not change under later ones
                await self._delete(names, RUN)  # an earlier claim may have died here
                await self._start(names, RUN, spec, facts, spec.network or Network.PROXY_ONLY)
                await carrying.record(line, names)
                (names.session / _PREPARED).touch()
        return line

    async def _evaluation(self, names: Names, spec: RuntimeSpec, facts: Facts) -> Line:
        """A container for the claim, with the workspace as the run left it and all else as `prepare` did."""
        source = await self._prepared(names, spec, facts)
        part = f"{VIEWS}/{names.claim}"
        line = Line(names.session / part, facts.workspace)
        try:
            await self._start(names, part, spec, facts, spec.verifier_network)
            await carrying.carry(source, line, names)
        except BaseException:
            # A half-made container would make the next attempt fail.
            await self._delete(names, part)
            raise
        return line

    async def _start(self, names: Names, part: str, spec: RuntimeSpec, facts: Facts, network: Network) -> int:
        """Start a container; its limit of open files."""
        plan = Plan(
            session=names.session,
            part=part,
            image=Path(facts.image),
            prepared=None if part == MAIN else names.session / MAIN / OVERLAY,
            has_host_network=network is Network.HOST,
            folders=needed_folders(PurePosixPath(facts.workspace), spec),
            tools=facts.tools,
        )
        answer = await place.start(self._toolbox, plan)
        return int(answer["files"])

    async def _delete(self, names: Names, part: str) -> None:
        await place.end(names.session, part)
        await asyncio.to_thread(session_folder.delete, names.session / part)

    def unenforced(self, spec: RuntimeSpec) -> list[str]:
        host = ("network", "udp", "session_key") if spec.network is Network.HOST else ()
        return sorted((*UNENFORCED, *host))

    async def labelled(self) -> list[Labelled]:
        return self.folders.labelled()

    async def remove(self, handle: Handle) -> None:
        await session_folder.remove(self.folders.found(handle))

    async def kill_claim(self, claim_id: str) -> None:
        check_claim_id(claim_id)
        folders = [self.folders.found(one.handle) for one in self.folders.labelled()]
        await asyncio.gather(*(line.kill(claim_id) for folder in folders for line in lines_of(folder)))
