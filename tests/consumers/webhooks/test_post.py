"""What is told, and what an endpoint's answer means."""

from __future__ import annotations

import json
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.webhooks.courier import following
from consumers.webhooks.post import Answer, Verdict, judge, message, retry_after_s, webhook_id
from topics.types.session import Status
from topics.webhooks import Owed, Settled

OWED = Owed(
    "t1", "https://x.example/?token=s", 1_700_000_000_123, [1.0, None], [Status.COMPLETED, Status.FAILED], "eval"
)


def test_the_message_says_what_a_trainer_needs_and_the_same_at_each_try() -> None:
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
    later = following(OWED, Answer(Verdict.FAILED, "it answered 500"), 1_700_000_100_000, 0.5)
    assert isinstance(later, Owed)
    assert message(later, "lab") == message(OWED, "lab")
    assert webhook_id(later, "lab") == webhook_id(OWED, "lab") == "lab.group.t1"


@pytest.mark.parametrize(
    ("status", "headers", "verdict", "retry_after"),
    [
        (200, {}, Verdict.DELIVERED, 0),
        (204, {}, Verdict.DELIVERED, 0),
        (302, {"Location": "/other"}, Verdict.FAILED, 0),
        (401, {}, Verdict.FAILED, 0),
        (410, {}, Verdict.GONE, 0),
        (429, {"Retry-After": "17"}, Verdict.FAILED, 17),
        (503, {"Retry-After": formatdate(1060, usegmt=True)}, Verdict.FAILED, 60),
        (503, {"Retry-After": formatdate(10, usegmt=True)}, Verdict.FAILED, 0),
        (503, {"Retry-After": "soon"}, Verdict.FAILED, 0),
        (500, {"Retry-After": "17"}, Verdict.FAILED, 0),
    ],
)
def test_what_a_status_means(status: int, headers: dict[str, str], verdict: Verdict, retry_after: float) -> None:
    answer = judge(status, headers, 1000)
    assert (answer.verdict, answer.retry_after_s) == (verdict, retry_after)


@given(st.text(max_size=60) | st.integers().map(str))
def test_any_retry_after_is_seconds_or_nothing(value: str) -> None:
    assert retry_after_s(value, 1e9) >= 0


def test_a_day_of_failures_ends_in_a_settlement_and_one_success_at_any_point() -> None:
    owed, now, tries = OWED, 1_700_000_000_000, 0
    while True:
        tries += 1
        after = following(owed, Answer(Verdict.FAILED, "it answered 500"), now, 0.5)
        if isinstance(after, Settled):
            break
        assert (after.tries, after.failed_ms, after.why) == (tries, 1_700_000_000_000, "it answered 500")
        assert after.due_ms > now
        owed, now = after, after.due_ms
        assert following(owed, Answer(Verdict.DELIVERED), now, 0.5) == Settled("t1", "delivered", tries + 1)
    assert after == Settled("t1", "given_up", tries)
    assert 22 * 3600_000 < now - 1_700_000_000_000 < 24 * 3600_000
