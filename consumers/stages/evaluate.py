"""The stage evaluate: an evaluator judges what a run left in its runtime.

In: a ticket with a runtime and how the run ended. Out: `Evaluated` with a reward, or without one and an error; no reward is invented.
Begins by killing all that earlier claims left in the runtime, and removes it once the verdict is on the log.
"""

from __future__ import annotations

import math
import traceback
from typing import ClassVar

from consumers.evaluators.base import Case, EvaluationError, Evaluator, Verdict
from consumers.runtimes.base import Runtime, RuntimeFault
from consumers.stages import artifacts
from consumers.stages.budget import Overrun
from consumers.stages.claims import MESSAGE_LIMIT, Claim
from consumers.stages.worker_context import Site
from topics.environment import registry
from topics.environment.keys import redacted
from topics.events import Evaluated, Fact
from topics.types.errors import InputError, Kind, NotReady, SessionError
from topics.types.session import Stage, Status
from topics.types.task import TaskRequest


class Evaluate:
    needs_grant: ClassVar[bool] = True

    def __init__(self, site: Site, claim: Claim) -> None:
        self._site = site
        self._claim = claim
        self._runtime: Runtime | None = None

    async def do(self) -> Fact:
        claim, ticket = self._claim, self._claim.ticket
        task = claim.task(self._site.blobs)
        budget = self._site.budget(ticket.budget_s)
        self._runtime = await self._site.attach(ticket.runtime, claim.id, task.runtime)
        await self._runtime.kill_all()
        try:
            verdict = await budget.within(self._judge(self._runtime, task))
            return await self._fact(verdict)
        except EvaluationError as error:
            return self._failed(error.code, str(error), await self._stored(error.artifacts))
        except Overrun:
            return self._failed("timeout", f"the evaluation took longer than timeouts.evaluate = {ticket.budget_s:g} s")

    async def tidy(self, fact: Fact | None) -> None:
        """With the verdict out the runtime has no use; an evaluation that is tried again needs it."""
        is_final = isinstance(fact, Evaluated) and not (fact.error and fact.error.retryable)
        if is_final and self._runtime is not None:
            await self._runtime.remove()

    async def _judge(self, runtime: Runtime, task: TaskRequest) -> Verdict:
        """Raises InputError, NotReady and RuntimeFault for what isn't the evaluator's fault, EvaluationError for all else."""
        make = registry.load(registry.Kind.EVALUATOR, task.evaluator.strategy)
        evaluator: Evaluator = make(task.evaluator.config)
        ticket = self._claim.ticket
        case = Case(
            runtime=runtime,
            session_id=ticket.session_id,
            status=ticket.status or Status.FAILED,
            exit_code=ticket.exit_code,
            error=ticket.error,
            env=task.evaluator.env,
        )
        try:
            return await evaluator.evaluate(case)
        except (InputError, NotReady, RuntimeFault, EvaluationError):
            raise
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            raise EvaluationError(
                "evaluator_raised", f"{type(error).__name__}: {error}", {"evaluation_output": trace.encode()}
            ) from error

    async def _fact(self, verdict: Verdict) -> Evaluated:
        for reward in (verdict.reward, *(verdict.call_rewards or {}).values()):
            if reward is not None and not math.isfinite(reward):
                raise EvaluationError("bad_reward", f"a reward must be a finite number or None, got {reward!r}")
        claim, ticket = self._claim, self._claim.ticket
        return Evaluated(
            claim.finished_id,
            ticket.session_id,
            ticket.attempt,
            claim.id,
            reward=None if verdict.reward is None else float(verdict.reward),
            call_rewards=dict(verdict.call_rewards) if verdict.call_rewards else None,
            artifacts=await self._stored(verdict.artifacts),
            duration_ms=claim.elapsed_ms,
        )

    def _failed(self, code: str, message: str, kept: dict[str, str] | None = None) -> Evaluated:
        claim, ticket = self._claim, self._claim.ticket
        return Evaluated(
            claim.finished_id,
            ticket.session_id,
            ticket.attempt,
            claim.id,
            error=SessionError(Stage.EVALUATE.value, Kind.EVALUATION, code, redacted(message)[:MESSAGE_LIMIT]),
            artifacts=kept,
            duration_ms=claim.elapsed_ms,
        )

    async def _stored(self, found: dict[str, bytes]) -> dict[str, str] | None:
        return await artifacts.stored(self._site.blobs, self._claim.id, found) or None
