"""Removes runtimes as soon as the coordinator says that nobody needs them (`Discard`). Every worker does it, on its own host.

What is in this worker's hand waits until it has left it, which a Revoke brings about. A `Discard` stays true for ever, since no session
comes back to a runtime that it was parted from: said twice, late, or to two workers of one host, it removes what is left. One that
nobody heard is made up for by the reaper.
"""

from __future__ import annotations

import asyncio

import structlog

from consumers.runtimes.base import Labelled, RuntimeBackend, RuntimeFault
from consumers.stages.claims import Claims
from consumers.stages.worker_context import Site
from topics.control import Discard

AT_ONCE = 8
"""Removals that run together: each waits for a thread and the disk."""

log = structlog.get_logger()


class Discards:
    """What is to be removed and isn't yet."""

    def __init__(self, site: Site, claims: Claims) -> None:
        self._site = site
        self._claims = claims
        self._asked: dict[str, Discard] = {}
        """By the claim that made the runtime."""
        self._woken = asyncio.Event()
        self.removed = 0
        """Runtimes, since the start."""

    def ask(self, discard: Discard) -> None:
        """Remove it soon; of another host it isn't found here, and forgotten."""
        self._asked[discard.claim_id] = discard
        self._woken.set()

    def wake(self) -> None:
        """A claim may have left the hand."""
        if self._asked:
            self._woken.set()

    async def run(self) -> None:
        """Remove what is asked for until cancelled. Those that came together share one look at what lies on the host."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            due = {claim: asked for claim, asked in self._asked.items() if not self._is_in_hand(asked)}
            self._asked = {claim: asked for claim, asked in self._asked.items() if claim not in due}
            if not due:
                continue
            found = [
                (backend, runtime)
                for backend, runtime in await self._site.labelled()
                if (asked := due.get(runtime.labels.claim_id)) and dict(runtime.handle) == asked.runtime
            ]
            turns = asyncio.Semaphore(AT_ONCE)
            await asyncio.gather(*(self._remove(turns, backend, runtime) for backend, runtime in found))

    def _is_in_hand(self, asked: Discard) -> bool:
        return asked.claim_id in self._claims or self._claims.works_in(asked.runtime)

    async def _remove(self, turns: asyncio.Semaphore, backend: RuntimeBackend, runtime: Labelled) -> None:
        labels = runtime.labels
        async with turns:
            try:
                await backend.remove(runtime.handle)
            except (RuntimeFault, OSError) as error:
                # The reaper tries again.
                log.warning("runtime not removed", action="discard.failed", claim=labels.claim_id, why=str(error))
            else:
                self.removed += 1
                log.info("runtime removed", action="discard.removed", claim=labels.claim_id, session=labels.session_id)
