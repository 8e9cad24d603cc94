"""The interface of evaluators: a verdict on one session, inside the session's runtime.

An evaluator object is made for each session with the task's `evaluator.config`; its constructor raises InputError for a bad config. It is
cancelled when its budget is used up. A reward is a number only if the evaluator gave it; an evaluator that can't decide returns None or
raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from consumers.runtimes.base import Runtime
from topics.types.errors import SessionError
from topics.types.session import Status


class EvaluationError(Exception):
    """There is no verdict, and another try won't help. `code` is stable; `artifacts` as in `Verdict`."""

    def __init__(self, code: str, message: str, artifacts: dict[str, bytes] | None = None) -> None:
        self.code = code
        self.artifacts = artifacts or {}
        super().__init__(message)


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


@dataclass(frozen=True)
class Verdict:
    """The result of an evaluation."""

    reward: float | None
    call_rewards: Mapping[str, float] | None = None
    """By call id, if the evaluator rewards single calls."""
    artifacts: dict[str, bytes] = field(default_factory=dict)
    """Contents by name; stored in the blob store."""


class Evaluator(Protocol):
    """Evaluates one session."""

    async def evaluate(self, case: Case) -> Verdict:
        """Raises EvaluationError, and SandboxError from the runtime; after a SandboxError it is called again, three times in all."""
