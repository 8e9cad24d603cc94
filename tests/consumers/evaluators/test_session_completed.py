"""1.0 for a harness that ended well, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumers.evaluators.base import Case
from consumers.evaluators.session_completed import SessionCompleted
from topics.types.errors import InputError
from topics.types.session import Status


@pytest.mark.parametrize("status", list(Status))
async def test_only_a_completed_session_is_rewarded(case: Case, status: Status) -> None:
    verdict = await SessionCompleted({}).evaluate(replace(case, status=status))
    assert verdict.reward == (1.0 if status is Status.COMPLETED else 0.0)


def test_a_setting_is_refused() -> None:
    with pytest.raises(InputError, match=r"evaluator\.config\.x"):
        SessionCompleted({"x": 1})
