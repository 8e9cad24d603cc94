"""What a worker process offers to its stages: settings, blobs, the runtimes of this host, the clocks that stand still."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from consumers.runtimes.base import Labelled, Runtime, RuntimeBackend, RuntimeFault
from consumers.stages.budget import Budget
from topics.environment import registry
from topics.environment.blobs import BlobStore
from topics.environment.settings import Settings
from topics.fleet import FleetState
from topics.types.errors import InputError
from topics.types.task import RuntimeSpec

log = structlog.get_logger()


class Site:
    """Shared by all claims of a process. `is_connected` says whether Kafka is there."""

    def __init__(self, settings: Settings, is_connected: Callable[[], bool]) -> None:
        self.settings = settings
        self.blobs = BlobStore(settings.blobs_folder)
        self.is_connected = is_connected
        self.fleet = FleetState(generation=0)
        """The last that `polar.fleet` told."""
        self._backends: dict[str, RuntimeBackend] = {}

    def budget(self, seconds: float) -> Budget:
        """A budget that starts now, and stands still without Kafka."""
        return Budget(seconds, self.is_connected)

    def run_budget(self, seconds: float) -> Budget:
        """The same for a harness: while the fleet is paused its calls wait, and that time isn't its own."""
        return Budget(seconds, lambda: self.is_connected() and not self.fleet.paused)

    def backend(self, name: str) -> RuntimeBackend:
        """The runtimes of one kind, by registry name or `module:Class`; made with the folder that they lie in.

        Raises InputError where this worker lacks it.
        """
        if name not in self._backends:
            # The namespace is in the path, so that whatever lies there is ours to reap, half-made and unlabelled ones too.
            folder = self.settings.data / "runtimes" / self.settings.namespace
            self._backends[name] = registry.load(registry.Kind.RUNTIME, name)(folder)
        return self._backends[name]

    def backend_of(self, spec: RuntimeSpec) -> RuntimeBackend:
        return self.backend(spec.import_path or spec.backend)

    async def attach(self, handle: dict[str, str] | None, claim_id: str, spec: RuntimeSpec) -> Runtime:
        """The runtime that init made. Raises InputError, RuntimeFault `runtime_gone`."""
        assert handle is not None, "a ticket past init carries a runtime"
        return await self.backend_of(spec).attach(handle, claim_id, spec)

    def backends(self) -> list[RuntimeBackend]:
        """All kinds that this worker has or has used: where leftovers may lie."""
        for name in registry.names(registry.Kind.RUNTIME):
            try:
                self.backend(name)
            except InputError:
                continue  # installed without what it needs: then nobody here made any
        return list(self._backends.values())

    async def labelled(self) -> list[tuple[RuntimeBackend, Labelled]]:
        """All runtimes on this host; those of a kind that can't be asked now are left out, and found the next time."""
        found: list[tuple[RuntimeBackend, Labelled]] = []
        for backend in self.backends():
            try:
                found += [(backend, runtime) for runtime in await backend.labelled()]
            except (RuntimeFault, OSError) as error:
                log.warning("runtimes not listed", action="site.unlisted", kind=type(backend).__name__, why=str(error))
        return found
