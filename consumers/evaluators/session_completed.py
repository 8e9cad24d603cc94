"""The evaluator `session_completed`: 1.0 if the harness exited with 0 within its budget, otherwise 0.0. No config."""

from __future__ import annotations

from collections.abc import Mapping

from consumers.evaluators.base import Case, Verdict
from topics.types.errors import InputError
from topics.types.session import Status


class SessionCompleted:
    """See `base.Evaluator`."""

    def __init__(self, config: Mapping[str, object]) -> None:
        for name, value in config.items():
            raise InputError(f"evaluator.config.{name}", value, "session_completed has no settings")

    async def evaluate(self, case: Case) -> Verdict:
        return Verdict(1.0 if case.status is Status.COMPLETED else 0.0)
