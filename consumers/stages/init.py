"""The stage init: makes a session's runtime and prepares it.

In: a ticket without a runtime. Out: `InitFinished` with the handle that the other stages attach to, or an error. The runtime is this
claim's own, so work starts before the Grant. What fails here is tried again in another attempt, except bad input: a fetch that failed
may go better, a source that isn't there won't.
"""

from __future__ import annotations

from typing import ClassVar

from consumers.harnesses.base import harness_of
from consumers.runtimes.base import Handle, Labels, RuntimeBackend
from consumers.runtimes.prepare import prepare
from consumers.stages.budget import Overrun
from consumers.stages.claims import Claim
from consumers.stages.worker_context import Site
from topics.events import Fact, InitFinished
from topics.types.errors import Kind, SessionError
from topics.types.session import Stage
from topics.types.task import TaskRequest


class Init:
    needs_grant: ClassVar[bool] = False

    def __init__(self, site: Site, claim: Claim) -> None:
        self._site = site
        self._claim = claim
        self._backend: RuntimeBackend | None = None

    async def do(self) -> Fact:
        claim, ticket = self._claim, self._claim.ticket
        task = claim.task(self._site.blobs)
        self._backend = self._site.backend_of(task.runtime)
        try:
            handle = await self._site.budget(ticket.budget_s).within(self._make(self._backend, task))
        except Overrun:
            message = f"preparing the runtime took longer than timeouts.init = {ticket.budget_s:g} s"
            return claim.failure(SessionError(Stage.INIT.value, Kind.INFRA, "timeout", message, retryable=True))
        return InitFinished(
            claim.finished_id,
            ticket.session_id,
            ticket.attempt,
            claim.id,
            runtime=dict(handle),
            duration_ms=claim.elapsed_ms,
        )

    async def tidy(self, fact: Fact | None) -> None:
        """Remove the runtime, half-made or whole, unless the session goes on in it."""
        if self._backend is None or (isinstance(fact, InitFinished) and fact.error is None):
            return
        for found in await self._backend.labelled():
            if found.labels.claim_id == self._claim.id:
                await self._backend.remove(found.handle)

    async def _make(self, backend: RuntimeBackend, task: TaskRequest) -> Handle:
        ticket = self._claim.ticket
        # The harness is installed here, so that a first download isn't charged to the run's budget.
        await harness_of(task.agent).install()
        labels = Labels(self._site.settings.namespace, ticket.session_id, ticket.attempt, self._claim.id)
        runtime = await backend.create(labels, task.runtime)
        await prepare(runtime, task.runtime.prepare)
        return runtime.handle
