"""The runtime `docker`: a session in containers of its task's image, by Docker's API.

A session has one container for `prepare` and the run, whose first process forks a supervisor for each program (`keeper.py`). It is made of
the task's image, or of what equal actions left in an earlier session (`preparations.py`). An evaluation has a container of its own: of the
same image, or of a snapshot that is made between `prepare` and the run if more was done there, with the run's changes to the workspace
carried into it (`difference.py`). Where the run has another network than `prepare`, it too has a container
of its own, of that snapshot.

Invariants: a container has no network but loopback, unless the policy is `host`; it has no capability; programs see of this host the
worker's Python and the tools, read-only. The model and the allowed hosts are served by the worker, on sockets that the keeper has opened
inside and sent out (`cell.ways_out`), so the session's key stays outside. Everything carries labels (`place.py`), and a folder on this
host is made first: `<root>/<claim>/` with `logs` and the sockets.

Needs: the engine on this worker's host, with the same paths as the worker; Linux. An image needs nothing but what its task runs, and
`bash` for commands that are text. Programs are the image's user. Not kept between the containers of a session: what lies in a VOLUME of
the image, and in `/dev/shm`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from weakref import WeakValueDictionary

import docker
import msgspec

from consumers.runtimes import session_folder
from consumers.runtimes.base import Handle, Labelled, Labels, SandboxError, Step
from consumers.runtimes.container import carrying, place
from consumers.runtimes.container.engine import Engine, gone_is_fine
from consumers.runtimes.container.line import Line
from consumers.runtimes.container.place import ROOT_LABEL, RUNTIME_LABEL, Plan
from consumers.runtimes.container.preparations import Preparations
from consumers.runtimes.container.sandbox import CHANGED, NAME, ContainerRuntime, Facts, Names, lines_of, needed_folders
from consumers.runtimes.container.toolbox import Toolbox, host_tools
from consumers.runtimes.images.workspace import workspace_of
from consumers.runtimes.preparation_names import locked, names_of
from consumers.runtimes.session_folder import SessionFolders, check_claim_id
from topics.environment import private_files
from topics.types.errors import InputError, NotReadyError
from topics.types.runtime import Network, RuntimeSpec

MAIN, RUN, VIEWS = "main", "run", "views"
"""Folders in a session's: of its first container, of the run's if it has another, and of those of evaluations."""

_FACTS = "container.json"
_PREPARED = "prepared.json"


class Prepared(msgspec.Struct):
    """How `prepare` left the session: an image, and the folder of the run's container."""

    image: str
    container: str


class ContainerBackend:
    """Makes and finds the containers of sessions whose folders lie under `root`, which all workers of a pool on this host share."""

    def __init__(self, root: Path) -> None:
        """Raises NotReadyError on another system than Linux, and without Docker's client."""
        if sys.platform != "linux":
            raise NotReadyError(f"the runtime 'docker' needs Linux, not {sys.platform}")
        self.folders = SessionFolders(root, NAME, needed=_FACTS)
        self._engine = Engine()
        self._toolbox = Toolbox(self.folders.root)
        self._preparations = Preparations(self._engine, self.folders.root)
        self._was_listed = False
        self._preparing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, labels: Labels, spec: RuntimeSpec, steps: Sequence[Step] = ()) -> ContainerRuntime:
        """Raises InputError for the image, SandboxError `runtime_exists`, `image_unavailable`, `not_made`, `engine_failed`, and
        NotReadyError if no engine answers."""
        check_claim_id(labels.claim_id)
        if not spec.image:
            raise InputError(
                "runtime.image", spec.image, "a container needs an image; name one, like image: python:3.12"
            )
        image = await self._engine.image(spec.image)
        workspace = workspace_of(PurePosixPath(image.workspace or "/"), spec)
        facts = Facts(image.id, dict(image.env), str(workspace), 0, host_tools())
        names = Names(self.folders.root, self.folders.root / labels.claim_id, labels.claim_id)
        runtime = self._runtime(names, spec, facts, MAIN, spec.setup_network)
        self.folders.new(labels, ("logs", VIEWS))
        if steps:
            await self._begin_prepared(names, labels, spec, facts, [partial(step, runtime) for step in steps])
        else:
            await self._begin(names, labels, spec, facts)
        return runtime

    async def _begin(self, names: Names, labels: Labels, spec: RuntimeSpec, facts: Facts) -> None:
        """Make the session's first container, of the image in `facts`."""
        is_host = spec.setup_network is Network.HOST
        answer = await self._make(names, MAIN, facts.image, labels, spec, facts, is_host=is_host)
        facts.files = answer["files"]
        private_files.replace(names.session / _FACTS, msgspec.json.encode(facts))

    async def _begin_prepared(
        self,
        names: Names,
        labels: Labels,
        spec: RuntimeSpec,
        facts: Facts,
        steps: Sequence[Callable[[], Awaitable[None]]],
    ) -> None:
        """The same, as `steps` leave it. They are taken where this host hasn't kept what equal ones left."""
        name, kept = names_of(facts.image, spec)[-1], self._preparations
        if (image := await kept.use(name)) is None:
            async with locked(self.folders.root, name):
                if (image := await kept.use(name)) is None:
                    await self._begin(names, labels, spec, facts)
                    for step in steps:
                        await step()
                    facts.image = await kept.keep(name, names.container(MAIN))
                    private_files.replace(names.session / _FACTS, msgspec.json.encode(facts))
                    (names.session / CHANGED).unlink(missing_ok=True)
                    return
        facts.image = image
        await self._begin(names, labels, spec, facts)

    async def attach(
        self, handle: Handle, claim_id: str, spec: RuntimeSpec, *, fresh: bool = False
    ) -> ContainerRuntime:
        """Also raises SandboxError `engine_failed`."""
        check_claim_id(claim_id)
        names = Names(self.folders.root, self.folders.live(handle), claim_id)
        facts = msgspec.json.decode((names.session / _FACTS).read_bytes(), type=Facts)
        if fresh:
            return self._runtime(names, spec, facts, None, spec.verifier_network)
        if names.is_maker:
            return self._runtime(names, spec, facts, MAIN, spec.setup_network)
        prepared = await self._prepared(names, spec, facts)
        return self._runtime(names, spec, facts, prepared.container, Network.NONE)

    def _runtime(
        self, names: Names, spec: RuntimeSpec, facts: Facts, container: str | None, network: Network
    ) -> ContainerRuntime:
        """`container`: its folder in the session's; None: it is made at the first use, for an evaluation."""

        async def opened() -> Line:
            if container is None:
                return await self._evaluation(names, spec, facts)
            return Line(names.session / container, facts.workspace)

        handle = self.folders.handle(names.session)
        return ContainerRuntime(names, handle, spec, facts, network, opened, lambda: self.remove(handle))

    async def _prepared(self, names: Names, spec: RuntimeSpec, facts: Facts) -> Prepared:
        """How `prepare` left the session; recorded before anything else works in it."""
        kept = names.session / _PREPARED
        async with self._preparing.setdefault(names.session.name, asyncio.Lock()):
            if not kept.exists():
                image, container = facts.image, MAIN
                if (names.session / CHANGED).exists():
                    image = await self._engine.call(lambda client: _commit(client, names.container(MAIN)))
                is_host = spec.network is Network.HOST
                if is_host != (spec.setup_network is Network.HOST):
                    container = RUN
                    await self._make(names, RUN, image, self._labels(names), spec, facts, is_host=is_host)
                    await self._engine.call(lambda client: _remove(client, names.container(MAIN)))
                    await asyncio.to_thread(session_folder.delete, names.session / MAIN)
                line = Line(names.session / container, facts.workspace)
                await carrying.record(line, names)
                private_files.replace(kept, msgspec.json.encode(Prepared(image, container)))
        return msgspec.json.decode(kept.read_bytes(), type=Prepared)

    async def _evaluation(self, names: Names, spec: RuntimeSpec, facts: Facts) -> Line:
        """A container for the claim, with the workspace as the run left it and all else as `prepare` did."""
        prepared = await self._prepared(names, spec, facts)
        view = f"{VIEWS}/{names.claim}"
        is_host = spec.verifier_network is Network.HOST
        try:
            await self._make(names, view, prepared.image, self._labels(names), spec, facts, is_host=is_host)
            source, target = (Line(names.session / part, facts.workspace) for part in (prepared.container, view))
            await carrying.carry(source, target, names)
        except BaseException:
            # A half-made container would make the next attempt fail.
            await self._engine.call(lambda client: _remove(client, names.container(view)))
            await asyncio.to_thread(session_folder.delete, names.session / view)
            raise
        return target

    def unenforced(self, spec: RuntimeSpec) -> list[str]:
        enforced = place.enforced(self._engine.info)
        if spec.storage_mb is None:
            enforced -= {"storage_mb"}
        named = ["memory_mb", "pids", "storage_mb", *(["cpus"] if spec.cpus is not None else [])]
        gaps = [name for name in named if name not in enforced]
        if spec.network is Network.HOST:
            gaps += ["network", "udp", "session_key"]
        return sorted(gaps)

    async def labelled(self) -> list[Labelled]:
        """By the folders on this host, and by what the engine has: a container may outlive its folder.

        Where no container was ever made, the engine is asked once.
        """
        found = {one.labels.claim_id: one for one in self.folders.labelled()}
        if self._was_listed and not self.folders.root.is_dir():
            return []
        self._was_listed = True
        try:
            things = await self._engine.call(lambda client: _labels_of_all(client, self._own()))
        except NotReadyError:  # no engine, or not now: it is asked again, and the folders tell what is to be removed
            return list(found.values())
        for labels in things:
            if labels[RUNTIME_LABEL] not in found:
                its = place.read_labels(labels)
                found[its.claim_id] = Labelled(its, self.folders.handle(self.folders.root / its.claim_id))
        return list(found.values())

    async def remove(self, handle: Handle) -> None:
        folder = self.folders.found(handle)
        labels = self._own(folder.name)
        try:
            await self._engine.call(lambda client: _remove_all(client, labels))
        except NotReadyError as error:
            raise SandboxError("not_removed", str(error)) from error
        await asyncio.to_thread(session_folder.delete, folder)

    async def kill_claim(self, claim_id: str) -> None:
        check_claim_id(claim_id)
        folders = [self.folders.found(one.handle) for one in self.folders.labelled()]
        await asyncio.gather(*(line.kill(claim_id) for folder in folders for line in lines_of(folder)))

    async def _make(
        self, names: Names, part: str, image: str, labels: Labels, spec: RuntimeSpec, facts: Facts, *, is_host: bool
    ) -> dict[str, Any]:
        """Make a container, whose folder in the session's is `part`; its keeper's first answer."""
        plan = Plan(
            name=names.container(part),
            image=image,
            root=names.root,
            runtime=names.session.name,
            labels=labels,
            spec=spec,
            has_host_network=is_host,
            folders=needed_folders(PurePosixPath(facts.workspace), spec),
            tools=facts.tools,
        )
        return await place.make(self._engine, self._toolbox, names.session / part, plan)

    def _labels(self, names: Names) -> Labels:
        """The labels of what `names.claim` makes in a session of another claim's."""
        made = session_folder.labels_of(names.session)
        return Labels(made.namespace, made.session_id, made.attempt, names.claim)

    def _own(self, runtime: str | None = None) -> dict[str, str]:
        """Labels of all that lies under the root, or of what one runtime has; the last one names the fewest things."""
        return {ROOT_LABEL: str(self.folders.root)} | ({RUNTIME_LABEL: runtime} if runtime else {})


def _commit(client: docker.DockerClient, container: str) -> str:
    """The id of an image of the container as it is; it has the container's labels."""
    # Nothing runs in it but its keeper; and an engine without privileges can't pause where it has no cgroups.
    return str(client.containers.get(container).commit(pause=False).id)


def _remove(client: docker.DockerClient, container: str) -> None:
    gone_is_fine(lambda: client.containers.get(container).remove(force=True, v=True))


def _remove_all(client: docker.DockerClient, labels: Mapping[str, str]) -> None:
    """Remove the containers and the images with these labels."""
    for container in _with(labels, partial(client.api.containers, all=True)):
        gone_is_fine(partial(client.api.remove_container, container["Id"], force=True, v=True))
    for image in _with(labels, client.api.images):
        # Otherwise the engine would also remove the task's image, if that has no name; Podman 4.3 does.
        gone_is_fine(partial(client.api.remove_image, image["Id"], force=True, noprune=True))


def _labels_of_all(client: docker.DockerClient, labels: Mapping[str, str]) -> list[Mapping[str, str]]:
    """All labels of the containers and the images that have `labels`."""
    found = [*_with(labels, partial(client.api.containers, all=True)), *_with(labels, client.api.images)]
    return [one["Labels"] for one in found]


def _with(labels: Mapping[str, str], things: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Things of the engine that have all of `labels`. The request names the last label alone, because Podman 4.3 finds no image by two."""
    name, value = list(labels.items())[-1]
    return [one for one in things(filters={"label": f"{name}={value}"}) if labels.items() <= one["Labels"].items()]
