"""Removes runtimes as soon as the coordinator reports that nobody needs them (`Discard`). Every worker does this on its own host.

A runtime that one of this worker's claims uses stays until that claim ends, which a Revoke brings about. A `Discard` stays true for
ever, because no session comes back to a runtime that it was parted from: sent twice, late, or to two workers of one host, it removes
what is still there. A `Discard` that no worker read is made up for by the reaper.
"""

from __future__ import annotations

import asyncio

from consumers.runtimes.base import Labelled, RuntimeBackend
from consumers.stages.claim_runner import ClaimRunner
from consumers.stages.worker_context import WorkerContext, remove_runtime
from topics.control import Discard

AT_ONCE = 8
"""Removals that run together: each takes a thread and waits for the disk."""


class Discards:
    """The runtimes that are to be removed."""

    def __init__(self, context: WorkerContext, claims: ClaimRunner) -> None:
        self._context = context
        self._claims = claims
        self._pending: dict[str, Discard] = {}
        """By the claim that made the runtime."""
        self._woken = asyncio.Event()
        self.removed = 0
        """Runtimes since the start."""

    def add(self, discard: Discard) -> None:
        """Remove the runtime soon. A runtime of another host isn't found here, and the `Discard` is forgotten."""
        self._pending[discard.claim_id] = discard
        self._woken.set()

    def wake(self) -> None:
        """A claim may have ended."""
        if self._pending:
            self._woken.set()

    async def run(self) -> None:
        """Remove runtimes until cancelled. One scan of the host serves all the Discards that are pending when it starts."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            due = {claim_id: discard for claim_id, discard in self._pending.items() if not self._is_used(discard)}
            self._pending = {claim_id: d for claim_id, d in self._pending.items() if claim_id not in due}
            if not due:
                continue
            found = [
                (backend, runtime)
                for backend, runtime in await self._context.labelled()
                if (discard := due.get(runtime.labels.claim_id)) and dict(runtime.handle) == discard.runtime
            ]
            slots = asyncio.Semaphore(AT_ONCE)
            await asyncio.gather(*(self._remove(slots, backend, runtime) for backend, runtime in found))

    def _is_used(self, discard: Discard) -> bool:
        return discard.claim_id in self._claims or self._claims.uses(discard.runtime)

    async def _remove(self, slots: asyncio.Semaphore, backend: RuntimeBackend, runtime: Labelled) -> None:
        async with slots:
            if await remove_runtime(backend, runtime, "discard"):  # after a failure the reaper tries again
                self.removed += 1
