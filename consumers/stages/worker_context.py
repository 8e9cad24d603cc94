"""The context that the stages of a worker process share: settings, blobs, the runtimes of this host, and budgets that can stand still."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from consumers.runtimes import guarded
from consumers.runtimes.base import Labelled, Runtime, RuntimeBackend, SandboxError
from consumers.runtimes.cell.backend import check
from consumers.runtimes.images.store import ImageStore
from consumers.stages.budget import Budget
from consumers.stages.disk_room import DiskRoom
from topics.environment import blob_store, cache, registry
from topics.environment.settings import Settings
from topics.fleet import FleetView
from topics.types.errors import InputError, NotReadyError
from topics.types.runtime import Network, RuntimeSpec

CONFINED = "cell"
TRUSTED = ("apptainer", "docker", "landlock", "process")
"""Kinds for tasks that the worker trusts."""
WITH_IMAGES = ("apptainer", CONFINED)
"""Kinds whose images the worker fetches."""
NETWORKS = ("network", "setup_network", "verifier_network")
TRUST = "Workers that trust their tasks allow it: --trust-tasks"

log = structlog.get_logger()


class WorkerContext:
    """Shared by all claims of a process. `is_connected` returns whether Kafka is there; `on_change` is called when the disk loses or
    regains its room."""

    def __init__(self, settings: Settings, is_connected: Callable[[], bool], on_change: Callable[[], None]) -> None:
        self.settings = settings
        self.disk_room = DiskRoom(settings.data, on_change)
        self.blobs = blob_store.cached(settings)
        self.is_connected = is_connected
        self.fleet = FleetView()
        self._images = ImageStore(cache.root() / "images", settings.images, trusts_tasks=settings.trust_tasks)
        self._backends: dict[str, RuntimeBackend] = {}
        self._without_cells: NotReadyError | None = None
        """Why this host can't run cells."""

    async def check_cells(self) -> None:
        """Find out whether this host can run cells; a log line if it can't."""
        try:
            await check()
        except NotReadyError as error:
            self._without_cells = error
            what = (
                f"tasks run in the runtime {guarded.instead_of_cells()!r}, which enforces less (docs/security.md)"
                if self.settings.trust_tasks
                else "tasks can't run here, unless they are trusted (--trust-tasks)"
            )
            log.warning(f"no cells: {what}", action="worker.no_cells", why=str(error))

    def budget(self, seconds: float) -> Budget:
        """A budget that starts now and stands still without Kafka."""
        return Budget(seconds, self.is_connected)

    def run_budget(self, seconds: float) -> Budget:
        """A budget for a harness: it also stands still while the fleet is paused, since the harness's calls wait then."""
        return Budget(seconds, lambda: self.is_connected() and not self.fleet.paused)

    def backend(self, name: str) -> RuntimeBackend:
        """The runtimes of one kind, by registry name or `module:Class`. Raises InputError if this worker doesn't have that kind."""
        if name not in self._backends:
            # The namespace is in the path, so whatever lies there is ours to reap: half-made and unlabelled runtimes too.
            folder = self.settings.data / "runtimes" / self.settings.namespace / name
            make = registry.load(registry.Kind.RUNTIME, name)
            self._backends[name] = make(folder, self._images) if name in WITH_IMAGES else make(folder)
        return self._backends[name]

    def backend_of(self, spec: RuntimeSpec) -> RuntimeBackend:
        """Raises InputError for what only a worker that trusts its tasks allows, and NotReadyError if this host can't run the kind."""
        if not self.settings.trust_tasks:
            if spec.backend in TRUSTED:
                raise InputError(
                    "runtime.backend", spec.backend, f"would run the task outside of a cell; leave it out. {TRUST}"
                )
            for field in NETWORKS:
                if (policy := getattr(spec, field)) is Network.HOST:
                    raise InputError(
                        f"runtime.{field}", policy, f"lets the task reach all that this host reaches. {TRUST}"
                    )
        if (name := spec.import_path or spec.backend) is not None:
            return self.backend(name)
        if self._without_cells is None:
            return self.backend(CONFINED)
        if not self.settings.trust_tasks:
            raise NotReadyError(f"this worker's host can't run cells: {self._without_cells}")
        instead = guarded.instead_of_cells()
        try:
            spec.check_kept(instead)
        except ValueError as error:
            raise InputError("runtime", instead, f"{error}; this worker's host can't run cells") from None
        return self.backend(instead)

    async def attach(
        self, handle: dict[str, str] | None, claim_id: str, spec: RuntimeSpec, *, fresh: bool = False
    ) -> Runtime:
        """The runtime that init made; `fresh`: for an evaluation. Raises InputError, SandboxError `runtime_gone`."""
        assert handle is not None, "a ticket past init carries a runtime"
        return await self.backend_of(spec).attach(handle, claim_id, spec, fresh=fresh)

    def backends(self) -> list[RuntimeBackend]:
        """All kinds that this worker has or has used: leftovers may lie in each."""
        for name in registry.names(registry.Kind.RUNTIME):
            try:
                self.backend(name)
            except (InputError, NotReadyError):
                continue  # installed without what it needs: no runtime of this kind was made here
        return list(self._backends.values())

    async def labelled(self) -> list[tuple[RuntimeBackend, Labelled]]:
        """All runtimes on this host. A backend that fails is logged and left out; the next call finds its runtimes."""
        found: list[tuple[RuntimeBackend, Labelled]] = []
        for backend in self.backends():
            try:
                found += [(backend, runtime) for runtime in await backend.labelled()]
            except (SandboxError, OSError) as error:
                log.warning(
                    "runtimes not listed", action="runtimes.unlisted", kind=type(backend).__name__, why=str(error)
                )
        return found


async def remove_made_by(backend: RuntimeBackend, claim_id: str) -> None:
    """Remove the runtimes that a claim made, half-made or whole. Raises SandboxError."""
    for found in await backend.labelled():
        if found.labels.claim_id == claim_id:
            await backend.remove(found.handle)


async def remove_runtime(backend: RuntimeBackend, runtime: Labelled, remover: str) -> bool:
    """Remove a runtime that nobody needs and log it as `<remover>.removed` or `.failed`; False if it failed."""
    labels = runtime.labels
    try:
        await backend.remove(runtime.handle)
    except (SandboxError, OSError) as error:
        log.warning("runtime not removed", action=f"{remover}.failed", claim=labels.claim_id, why=str(error))
        return False
    log.info("runtime removed", action=f"{remover}.removed", claim=labels.claim_id, session=labels.session_id)
    return True
