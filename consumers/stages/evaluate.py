"""The stage evaluate: an evaluator judges what a run left, in the run's runtime or in one of the verifier's own.

In: a ticket with a runtime and with how the run ended. Out: `Evaluated` with a reward, or with an error and no reward; no reward is
ever invented. The stage first kills all that earlier claims left in the runtime. The coordinator has the runtime discarded once a
verdict counts. A runtime of the verifier's own is made and removed by the claim.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import ClassVar

import structlog
from msgspec.structs import replace

from consumers.evaluators.base import REASON_LIMIT, Case, EvaluationError, Evaluator, Protecting, Verdict, checked
from consumers.runtimes.artifact_copy import carry
from consumers.runtimes.base import (
    CONTROL_S,
    HOST_DISK_FULL,
    STORAGE_EXCEEDED,
    Exec,
    Runtime,
    RuntimeBackend,
    SandboxError,
    is_broken_inside,
)
from consumers.runtimes.prepare import TargetError, prepare
from consumers.stages import artifacts, verifier_sandbox
from consumers.stages.budget import Budget, BudgetExceededError
from consumers.stages.claim_runner import Claim, StageFact, text_of_fact
from consumers.stages.collecting import collect
from consumers.stages.evaluation_access import ClaimModels, RunArtifacts
from consumers.stages.patient_blobs import fetch_for_evaluation
from consumers.stages.worker_context import WorkerContext, remove_made_by
from topics.environment import registry
from topics.types.errors import InputError, Kind, NotReadyError
from topics.types.runtime import RuntimeSpec
from topics.types.session import Status
from topics.types.task import TaskRequest

log = structlog.get_logger()


class _Phase(Enum):
    """The phases of an evaluation. The phase in which it fails decides who is at fault."""

    MAKING = auto()
    """The sandbox of the verifier's own is being made, and nothing of the run has reached it."""
    PREPARING = auto()
    """The evaluation's actions meet what the run left."""
    EVALUATING = auto()


class Evaluate:
    """See `claim_runner.Work`."""

    needs_grant: ClassVar[bool] = True

    def __init__(self, context: WorkerContext, claim: Claim) -> None:
        self._context = context
        self._claim = claim
        self._budget: Budget | None = None
        self._phase = _Phase.MAKING
        self._not_collected: list[str] = []
        """A sentence for each command of `runtime.collect` that failed."""
        self._own_backend: RuntimeBackend | None = None
        """The backend of the verifier's own sandbox, once there is one."""

    async def do(self) -> StageFact:
        claim, ticket = self._claim, self._claim.ticket
        task = await claim.task(self._context.blobs)
        spec, verifier = task.runtime, task.runtime.verifier
        uploads = (*(verifier.prepare if verifier else ()), *(spec.eval_prepare or ()))
        await fetch_for_evaluation(self._context.blobs, uploads, ticket.budget_s)
        self._budget = budget = self._context.budget(ticket.budget_s)
        run = await self._attached(spec.left_by_run if verifier or spec.collect else spec)
        await run.kill_all()
        try:
            return await self._fact(await budget.within(self._verdict(run, task, budget)))
        except SandboxError as error:
            if error.code == HOST_DISK_FULL:
                await self._wait_for_room(budget)
            if error.code != STORAGE_EXCEEDED or self._phase is _Phase.MAKING:
                raise
            # What the agent wrote leaves no space for its evaluation: otherwise a bad reward could be turned into none.
            return await self._fact(Verdict(0.0, reason=str(error)))
        except EvaluationError as error:
            kind = Kind.INFRA if error.is_infra else Kind.EVALUATION
            failure = claim.failure(error.code, kind, str(error), retryable=error.is_infra)
            return replace(failure, artifacts=await self._stored(error.artifacts))
        except BudgetExceededError:
            longer = f"took longer than timeouts.evaluate = {ticket.budget_s:g} s"
            if self._phase is _Phase.MAKING:
                return claim.failure("timeout", Kind.INFRA, f"making the verifier's sandbox {longer}", retryable=True)
            if self._phase is _Phase.PREPARING:
                return await self._fact(Verdict(0.0, reason=f"preparing the evaluation {longer}"))
            return claim.failure("timeout", Kind.EVALUATION, f"the evaluation {longer}")

    async def tidy(self, fact: StageFact | None) -> None:  # noqa: ARG002 - whatever it says
        """Leave the run's runtime to the coordinator, which has it discarded once a verdict counts. A worker that was frozen can't know
        whether its own does, or whether another evaluation works in the runtime. The verifier's own is this claim's alone."""
        if self._own_backend is not None:
            await remove_made_by(self._own_backend, self._claim.id)

    async def _wait_for_room(self, budget: Budget) -> None:
        """Report the failure with room for the next try, or when this one's time is over: the coordinator counts tries."""
        log.warning("an evaluation waits for room on the disk", action="evaluation.no_room", claim=self._claim.id)
        with suppress(BudgetExceededError):
            await budget.within(self._context.disk_room.regained())

    async def _verdict(self, run: Runtime, task: TaskRequest, budget: Budget) -> Verdict:
        """Raises EvaluationError, also for what the evaluator raised; InputError, NotReadyError and SandboxError aren't its fault."""
        make = registry.load(registry.Kind.EVALUATOR, task.evaluator.strategy)
        with _own_failures():
            evaluator: Evaluator = make(task.evaluator.config)
        runtime = await self._runtime(run, task)
        self._phase = _Phase.PREPARING
        self._not_collected = await collect(run, task.runtime.collect)
        try:
            reason = await self._carried(run, runtime, task)
            if reason is None and isinstance(evaluator, Protecting):
                with _own_failures():
                    reason = await evaluator.restore(runtime)
            if reason is None:
                actions = task.runtime.eval_prepare or ()
                await prepare(runtime, actions, self._context.blobs, field="runtime.eval_prepare")
        except (SandboxError, InputError) as error:
            if not await _is_agents(error, runtime):
                raise
            # The actions met what the agent left, so their failure is the agent's: otherwise a bad reward could be turned into none.
            reason = str(error)
        if reason is not None:
            return Verdict(0.0, reason=reason, artifacts={"evaluation_output": reason.encode(errors="replace")})
        self._phase = _Phase.EVALUATING
        ticket = self._claim.ticket
        case = Case(
            runtime=runtime,
            session_id=ticket.session_id,
            status=ticket.status or Status.FAILED,
            exit_code=ticket.exit_code,
            error=ticket.error,
            env=task.evaluator.env,
            budget_s=budget.remaining_s,
            instruction=task.instruction,
            models=ClaimModels(self._context.settings, self._claim, task.agent.model_name),
            artifacts=RunArtifacts(self._context.blobs, ticket.artifacts or {}, ticket.lost_artifacts or (), budget),
        )
        try:
            with _own_failures():
                return checked(await evaluator.evaluate(case))
        except SandboxError as error:
            if error.code != "not_started" or not await _is_broken(runtime):
                raise
            # Otherwise a bad reward could be turned into none.
            return Verdict(0.0, reason=f"no program starts in the evaluation's sandbox any more: {error}")

    async def _attached(self, spec: RuntimeSpec) -> Runtime:
        """The sandbox with the files of the run; changes that this claim makes are seen by nobody else."""
        return await self._context.attach(self._claim.ticket.runtime, self._claim.id, spec, fresh=True)

    async def _runtime(self, run: Runtime, task: TaskRequest) -> Runtime:
        """The runtime of the evaluation."""
        if task.runtime.verifier is None:
            return await self._attached(task.runtime) if task.runtime.collect else run
        self._own_backend = self._context.backend_of(task.runtime.of_verifier)
        return await verifier_sandbox.made(self._own_backend, self._context, self._claim, task)

    async def _carried(self, run: Runtime, runtime: Runtime, task: TaskRequest) -> str | None:
        """Carry the run's artifacts into the verifier's own runtime. A reason if the run left what can't be carried."""
        for artifact in task.runtime.verifier.artifacts if task.runtime.verifier else ():
            if (reason := await carry(run, runtime, artifact)) is not None:
                return reason
        return None

    async def _fact(self, verdict: Verdict) -> StageFact:
        reason = "; ".join(filter(None, [verdict.reason, *self._not_collected]))
        return self._claim.fact(
            reward=None if verdict.reward is None else float(verdict.reward),
            reason=text_of_fact(reason, REASON_LIMIT) if reason else None,
            call_rewards=dict(verdict.call_rewards) if verdict.call_rewards else None,
            artifacts=await self._stored(verdict.artifacts),
        )

    async def _stored(self, found: dict[str, bytes]) -> dict[str, str] | None:
        assert self._budget is not None, "artifacts come from an evaluation that began"
        return await artifacts.stored(self._context.blobs, self._claim.id, found, self._budget.remaining_s) or None


@contextmanager
def _own_failures() -> Iterator[None]:
    """Make an EvaluationError of what an evaluator raised by mistake."""
    try:
        yield
    except (InputError, NotReadyError, SandboxError, EvaluationError):
        raise
    except (Exception, SystemExit) as error:
        trace = "".join(traceback.format_exception(error))
        raise EvaluationError(
            "evaluator_raised",
            f"{type(error).__name__}: {error}",
            {artifacts.TRACEBACK: trace.encode(errors="replace")},
        ) from error


async def _is_agents(error: SandboxError | InputError, runtime: Runtime) -> bool:
    """Whether what the agent left can be why an action before the tests failed: its command, its target or its folder, not what it
    uploads."""
    if isinstance(error, TargetError):
        return False
    if isinstance(error, InputError):
        return not error.field.endswith((".source", ".content"))
    return error.code == "prepare_failed" or await is_broken_inside(runtime, error)


async def _is_broken(runtime: Runtime) -> bool:
    """Whether no program starts in a sandbox because of what the run left, or of what the evaluator ran of it."""
    try:
        await runtime.exec(Exec(":", cwd=str(runtime.home), log="control.log", timeout_s=CONTROL_S, is_ours=True))
    except SandboxError as error:
        return await is_broken_inside(runtime, error)
    return False
