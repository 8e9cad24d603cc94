"""Whose word on an answer's weights stands."""

from __future__ import annotations

import pytest

from proxy.chat import Answer, Message, Usage
from proxy.metrics import Metrics
from proxy.policy import Policies


@pytest.mark.parametrize(
    ("fleet", "stands", "doubted"), [(4, 4, 0), (3, None, 1), (None, None, 1)], ids=["same", "other", "unproven"]
)
def test_a_version_that_was_named_after_sampling_stands_where_the_fleet_proves_it(
    fleet: int | None, stands: int | None, doubted: int
) -> None:
    """Weights that changed within the answer would be named for all of it."""
    metrics = Metrics()
    tokens = (b"\1\0\0\0", b"\2\0\0\0", b"\0" * 4)
    late = Answer(Message("assistant", "hi"), "stop", Usage(1, 1), *tokens, "m", policy_version=4, policy_doubt="late")
    told = Policies(metrics).told("default", late, fleet)
    assert (told.policy_version, told.policy_spans) == (stands, ())
    assert metrics.doubted.labels("late")._value.get() == doubted
