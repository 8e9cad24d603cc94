"""The sandbox of a verifier's own (`runtime.verifier`): made for one evaluation, and removed with it.

It carries the id of the evaluation's claim, so it is reaped if the worker dies: no row ever names it (protocol 16).
"""

from __future__ import annotations

from consumers.evaluators import base as evaluators
from consumers.runtimes.base import Labels, Runtime, RuntimeBackend
from consumers.runtimes.prepare import steps
from consumers.stages.claim_runner import Claim
from consumers.stages.worker_context import WorkerContext
from topics.types.errors import InputError
from topics.types.task import TaskRequest

_FIELD = "runtime.verifier"


async def made(backend: RuntimeBackend, context: WorkerContext, claim: Claim, task: TaskRequest) -> Runtime:
    """The sandbox as its preparation and the evaluator leave it. Raises as `RuntimeBackend.create`."""
    ticket, spec = claim.ticket, task.runtime.of_verifier
    labels = Labels(context.settings.namespace, ticket.session_id, ticket.attempt, claim.id)
    preparation = steps(spec.prepare, context.blobs, field=f"{_FIELD}.prepare")
    try:
        sandbox = await backend.create(labels, spec, preparation)
    except InputError as error:
        if error.field.startswith(_FIELD):
            raise
        raise InputError(error.field.replace("runtime", _FIELD, 1), error.value, error.reason) from error
    await evaluators.keep(task.evaluator.strategy, task.evaluator.config, sandbox)
    return await backend.attach(sandbox.handle, claim.id, spec, fresh=True)
