"""What the evaluate worker asks of an evaluator: a verdict on one session, inside its runtime.

An evaluator object is made per session with the task's `evaluator.config`; a bad config is an InputError at its making. It is cancelled
when its budget is used up. A reward is a number only if the evaluator gave it: one that can't judge gives None or raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from consumers.runtimes.base import Runtime
from topics.types.errors import SessionError
from topics.types.session import Status


class EvaluationError(Exception):
    """No verdict, for a reason that another try won't mend. `code` is stable; `artifacts` as in `Verdict`."""

    def __init__(self, code: str, message: str, artifacts: dict[str, bytes] | None = None) -> None:
        self.code = code
        self.artifacts = artifacts or {}
        super().__init__(message)


@dataclass(frozen=True)
class Case:
    """A session to judge. No process of its harness lives."""

    runtime: Runtime
    session_id: str
    status: Status
    """How the run ended: COMPLETED, FAILED or TIMED_OUT."""
    exit_code: int | None
    error: SessionError | None
    env: Mapping[str, str]
    """The task's `evaluator.env`, for programs that the evaluator starts."""


@dataclass(frozen=True)
class Verdict:
    """What an evaluator found."""

    reward: float | None
    call_rewards: Mapping[str, float] | None = None
    """By call id, where it judges single calls."""
    artifacts: dict[str, bytes] = field(default_factory=dict)
    """Kept in the blob store, by name."""


class Evaluator(Protocol):
    """Judges one session."""

    async def evaluate(self, case: Case) -> Verdict:
        """Raises EvaluationError; SandboxError from the runtime, which has the evaluation tried again."""
