"""The message of a webhook, and the meaning of an endpoint's result."""

from __future__ import annotations

import json
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.webhooks.client import Outcome, Result, message, result_of, retry_after_s, webhook_id
from consumers.webhooks.sender import next_record
from topics.types.session import Status
from topics.webhooks import Owed

OWED = Owed(
    "t1", "https://x.example/?token=s", 1_700_000_000_123, [1.0, None], [Status.COMPLETED, Status.FAILED], "eval"
)


def test_every_attempt_sends_the_same_message() -> None:
    assert json.loads(message(OWED, "lab")) == {
        "type": "group.finished",
        "timestamp": "2023-11-14T22:13:20.123Z",
        "data": {
            "task_id": "t1",
            "namespace": "lab",
            "num_samples": 2,
            "session_ids": ["t1.0", "t1.1"],
            "rewards": [1.0, None],
            "statuses": ["COMPLETED", "FAILED"],
            "output_topic": "lab.trajectories.eval",
        },
    }
    later = next_record(OWED, Result(Outcome.FAILED, "it answered 500"), 1_700_000_100_000, 0.5)
    assert isinstance(later, Owed)
    assert message(later, "lab") == message(OWED, "lab")
    assert webhook_id(later, "lab") == webhook_id(OWED, "lab") == "lab.group.t1"


@pytest.mark.parametrize(
    ("status", "headers", "outcome", "retry_after"),
    [
        (200, {}, Outcome.DELIVERED, 0),
        (204, {}, Outcome.DELIVERED, 0),
        (302, {"Location": "/other"}, Outcome.FAILED, 0),
        (401, {}, Outcome.FAILED, 0),
        (410, {}, Outcome.GONE, 0),
        (429, {"Retry-After": "17"}, Outcome.FAILED, 17),
        (503, {"Retry-After": formatdate(1060, usegmt=True)}, Outcome.FAILED, 60),
        (503, {"Retry-After": formatdate(10, usegmt=True)}, Outcome.FAILED, 0),
        (503, {"Retry-After": "soon"}, Outcome.FAILED, 0),
        (500, {"Retry-After": "17"}, Outcome.FAILED, 0),
    ],
)
def test_what_a_status_means(status: int, headers: dict[str, str], outcome: Outcome, retry_after: float) -> None:
    result = result_of(status, headers, 1000)
    assert (result.outcome, result.retry_after_s) == (outcome, retry_after)


@given(st.text(max_size=60) | st.integers().map(str))
def test_any_retry_after_is_seconds_or_nothing(value: str) -> None:
    assert retry_after_s(value, 1e9) >= 0
