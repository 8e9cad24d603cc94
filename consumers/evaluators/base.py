"""The interface of evaluators: a verdict on one session, inside the session's runtime.

An evaluator object is made for each session with the task's `evaluator.config`; its constructor raises InputError for a bad config. `polar
submit` and fanout also make one, to refuse a bad config early, so the constructor only checks. It is cancelled when its budget is used up.

A reward is a number only if the evaluator gave it; an evaluator that can't decide returns None or raises. A session without a reward trains
nothing, so an agent that can cause that escapes a bad reward. An evaluator therefore gives 0 with a reason for everything that files of the
run can cause, and raises only for a failure of the machine (SandboxError) or of itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Protocol, runtime_checkable

from consumers.runtimes.base import ModelAccess, Runtime
from topics.environment import registry
from topics.environment.keys import Limits
from topics.types.errors import SessionError
from topics.types.session import Status

REASON_LIMIT = 1000
"""Characters of a verdict's reason: it is in a session's row and in its trajectory, which stay small."""


class EvaluationError(Exception):
    """There is no verdict. `code` is stable; `artifacts` as in `Verdict`. `is_infra`: something else than the evaluator failed, like an
    engine, and another try may help: the evaluation is tried three times in all."""

    def __init__(
        self, code: str, message: str, artifacts: dict[str, bytes] | None = None, *, is_infra: bool = False
    ) -> None:
        self.code = code
        self.artifacts = artifacts or {}
        self.is_infra = is_infra
        super().__init__(message)


class Models(Protocol):
    """A way to models for an evaluator. Its calls are recorded as `judge`, and are never trained (protocol 36)."""

    def access(self, limits: Limits) -> ModelAccess:
        """The proxy, a new key, and the name of the task's model. The key must not reach the sandbox. Call this once for each evaluator:
        together, all keys of an evaluation allow the sum of their `limits`. Raises NotReadyError if this worker knows no proxy."""


class Artifacts(Protocol):
    """What the run left in the blob store."""

    async def read(self, name: str) -> bytes | None:
        """An artifact, like `patch` or `agent_log`; None if the run left none. Raises NotReadyError if this worker's store lacks it
        or doesn't answer, and EvaluationError (`artifact_lost`) if the run left it and the store didn't take it."""


@dataclass(frozen=True)
class Case:
    """A session to evaluate. No process of its harness lives."""

    runtime: Runtime
    session_id: str
    status: Status
    """How the run ended: COMPLETED, FAILED or TIMED_OUT."""
    exit_code: int | None
    error: SessionError | None
    env: Mapping[str, str]
    """The task's `evaluator.env`, for programs that the evaluator starts."""
    budget_s: float | None = None
    """After this many seconds the evaluator is cancelled, and there is no reward; None: not limited. Programs that the agent could make
    hang need a shorter limit of the evaluator's own."""
    instruction: str = ""
    """The task's."""
    models: Models | None = None
    """None: outside of a stage worker."""
    artifacts: Artifacts | None = None
    """None: outside of a stage worker."""


@dataclass(frozen=True)
class Verdict:
    """The result of an evaluation."""

    reward: float | None
    call_rewards: Mapping[str, float] | None = None
    """By call id, if the evaluator rewards single calls."""
    artifacts: dict[str, bytes] = field(default_factory=dict)
    """Contents by name; stored in the blob store."""
    reason: str | None = None
    """Why the reward is what it is: `polar show` prints it, and SQL has it as `reward_reason`. At most REASON_LIMIT characters are kept.
    None: there is nothing to explain."""


class Evaluator(Protocol):
    """Evaluates one session."""

    async def evaluate(self, case: Case) -> Verdict:
        """Raises EvaluationError, and SandboxError from the runtime; after a SandboxError it is called again, three times in all.
        Exception: if `not_started` persists in this sandbox and an untouched one starts programs, the reward is 0.0."""


@runtime_checkable
class Protecting(Evaluator, Protocol):
    """An evaluator that keeps files from the run. Its class must be installed on init workers, too."""

    async def keep(self, runtime: Runtime) -> None:
        """Called at the end of INIT, after `runtime.prepare`. The evaluation's home begins as this leaves it."""

    async def restore(self, runtime: Runtime) -> str | None:
        """Called before `runtime.eval_prepare`. A reason gives the reward 0.0 at once: files of the run are in the way."""


async def keep(strategy: str, config: Mapping[str, object], runtime: Runtime) -> None:
    """Let an evaluator keep what the run mustn't change."""
    try:
        evaluator = registry.load(registry.Kind.EVALUATOR, strategy)(config)
    except Exception:
        return  # perhaps only evaluate workers have it; the evaluation reports what is wrong with it
    if isinstance(evaluator, Protecting):
        await evaluator.keep(runtime)


def checked(verdict: object) -> Verdict:
    """The verdict of an evaluator, which may be a plug-in. Raises EvaluationError unless all its rewards are finite numbers or None."""
    if not isinstance(verdict, Verdict):
        raise EvaluationError("bad_reward", f"an evaluator must return a Verdict, got {type(verdict).__name__}")
    rewards: list[object] = [verdict.reward, *(verdict.call_rewards or {}).values()]
    for reward in rewards:
        if reward is not None and not (isinstance(reward, Real) and math.isfinite(reward)):
            raise EvaluationError("bad_reward", f"a reward must be a finite number or None, got {reward!r}")
    return verdict
