"""The stage init: makes a session's runtime and prepares it.

In: a ticket without a runtime. Out: `InitFinished` with the handle that the other stages attach to, or with an error. The runtime
belongs to this claim alone, so the work starts before the Grant. A failure is tried again in another attempt, except bad input: a
failed download may succeed later, an upload without content won't.
"""

from __future__ import annotations

from typing import ClassVar

from consumers.evaluators import base as evaluators
from consumers.harnesses.base import harness_of
from consumers.runtimes.base import Handle, Labels, RuntimeBackend
from consumers.runtimes.prepare import steps
from consumers.stages.budget import BudgetExceededError
from consumers.stages.claim_runner import Claim, StageFact
from consumers.stages.healthcheck import wait_until_healthy
from consumers.stages.patient_blobs import fetch
from consumers.stages.worker_context import WorkerContext, remove_made_by
from topics.events import InitFinished
from topics.types.errors import Kind
from topics.types.runtime import RuntimeSpec
from topics.types.task import TaskRequest

FETCH_SHARE = 0.9
"""Of the budget, for uploads to arrive: less than all of it, so that the error names the blob store."""


class Init:
    """See `claim_runner.Work`."""

    needs_grant: ClassVar[bool] = False

    def __init__(self, context: WorkerContext, claim: Claim) -> None:
        self._context = context
        self._claim = claim
        self._backend: RuntimeBackend | None = None

    async def do(self) -> StageFact:
        claim, budget_s = self._claim, self._claim.ticket.budget_s
        task = await claim.task(self._context.blobs)
        self._backend = self._context.backend_of(task.runtime)
        try:
            handle = await self._context.budget(budget_s).within(self._make(self._backend, task))
        except BudgetExceededError:
            message = f"preparing the runtime took longer than timeouts.init = {budget_s:g} s"
            return claim.failure("timeout", Kind.INFRA, message, retryable=True)
        return claim.fact(runtime=dict(handle), unenforced=_unenforced(self._backend, task.runtime))

    async def tidy(self, fact: StageFact | None) -> None:
        """Remove the runtime, half-made or whole, unless the session goes on in it."""
        if self._backend is None or (isinstance(fact, InitFinished) and fact.error is None):
            return
        await remove_made_by(self._backend, self._claim.id)

    async def _make(self, backend: RuntimeBackend, task: TaskRequest) -> Handle:
        ticket = self._claim.ticket
        # The harness is installed here so that a first download isn't charged to the run's budget.
        await harness_of(task.agent).install()
        labels = Labels(self._context.settings.namespace, ticket.session_id, ticket.attempt, self._claim.id)
        blobs = self._context.blobs
        await fetch(blobs, task.runtime.prepare, FETCH_SHARE * ticket.budget_s)
        runtime = await backend.create(labels, task.runtime, steps(task.runtime.prepare, blobs))
        if task.runtime.healthcheck is not None:
            await wait_until_healthy(runtime, task.runtime.healthcheck)
        if task.runtime.verifier is None:
            await evaluators.keep(task.evaluator.strategy, task.evaluator.config, runtime)
        return runtime.handle


def _unenforced(backend: RuntimeBackend, spec: RuntimeSpec) -> list[str]:
    """The gaps of the session's sandbox, and of the verifier's own, which will be made on a host with the same runtimes."""
    own = () if spec.verifier is None else backend.unenforced(spec.of_verifier)
    return [*backend.unenforced(spec), *(f"verifier.{name}" for name in own)]
