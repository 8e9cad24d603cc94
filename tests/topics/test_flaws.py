"""Records that a plain Kafka client wrote, whose numbers make no sense, are named as such before anything is computed from them."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from topics import completions, events, webhooks
from topics.completions import Build, CallRecord, CloseGroup, Open
from topics.events import SessionCloseRequested, SessionOpenRequested, TaskSubmitted
from topics.types.session import Plan, Status
from topics.webhooks import Owed, Settled

PLAN = Plan("default", 0, 3, 1.0, 1.0, 1.0, "pi", "prefix_merging", b"{}", None, "train", b"{}")
SUBMITTED = TaskSubmitted("f", "t", 1, "h", PLAN)


@pytest.mark.parametrize("field", ["init_budget_s", "run_budget_s", "evaluate_budget_s"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0, 1e18])
def test_a_budget_is_a_finite_time(field: str, number: float) -> None:
    assert events.flaw(SUBMITTED) is None
    found = events.flaw(replace(SUBMITTED, plan=replace(PLAN, **{field: number})))
    assert found is not None
    assert found.startswith(f"plan.{field}: must be 0 to ")


def test_a_run_has_a_name_that_a_task_could_have() -> None:
    assert events.flaw(replace(SUBMITTED, plan=replace(PLAN, run="night"))) is None
    found = events.flaw(replace(SUBMITTED, plan=replace(PLAN, run="a b")))
    assert (found or "").startswith("plan.run: must match ")
    found = events.flaw(SessionOpenRequested("f", "t", "o-1", 1000, run="a b"))
    assert (found or "").startswith("run: must match ")


@pytest.mark.parametrize("label", ["", "two\nlines", "\x1b[2J", "x" * 129, "a\u2028b"])
def test_a_label_is_a_short_line(label: str) -> None:
    assert events.flaw(SessionOpenRequested("f", "t", "o-1", 1000, label="temperature 0.7, é")) is None
    assert (events.flaw(SessionOpenRequested("f", "t", "o-1", 1000, label=label)) or "").startswith(
        "label: must match "
    )


@pytest.mark.parametrize("number", [-1, 10**18])
def test_the_time_of_an_opened_session_is_at_most_a_day(number: int) -> None:
    assert events.flaw(SessionOpenRequested("f", "t", "o-1", 1000)) is None
    assert (events.flaw(SessionOpenRequested("f", "t", "o-1", number)) or "").startswith("ttl_ms: must be 0 to 86400 s")


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_the_reward_of_a_close_is_finite_or_null(number: float) -> None:
    assert events.flaw(SessionCloseRequested("f", "t.0", reward=None)) is None
    assert events.flaw(SessionCloseRequested("f", "t.0", reward=0.5)) is None
    assert (events.flaw(SessionCloseRequested("f", "t.0", reward=number)) or "").startswith("reward: must be a finite")


BUILD = Build("t.0", "t", 0, 1, 1, "c", Status.COMPLETED, builder="b", builder_config=b"{}", harness="pi")
CLOSE = CloseGroup("t", 2, [1.0, None], [Status.COMPLETED, Status.FAILED])


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (replace(BUILD, sample_index=1), "session_id: "),
        (replace(BUILD, task_id="u"), "session_id: "),
        (replace(BUILD, num_samples=0), "num_samples: must be 1 to "),
        (replace(BUILD, output="../x"), "output: must match "),
        (replace(CLOSE, num_samples=10**9), "num_samples: must be 1 to "),
        (replace(CLOSE, num_samples=3), "rewards: one for each of 3 samples"),
        (replace(CLOSE, statuses=[]), "rewards: one for each of 2 samples"),
        (replace(CLOSE, output="x" * 500), "output: must match "),
    ],
)
def test_only_what_a_coordinator_could_have_written_is_built(record: CallRecord, field: str) -> None:
    assert [completions.flaw(each) for each in (BUILD, CLOSE, Open("t.0", 1, "c"))] == [None, None, None]
    assert (completions.flaw(record) or "").startswith(field)


@pytest.mark.parametrize("field", ["ended_ms", "failed_ms", "due_ms", "tries"])
@pytest.mark.parametrize("number", [-1, 2**62])
def test_the_numbers_of_a_webhook_are_times_and_tries(field: str, number: int) -> None:
    owed = Owed("t", "https://h", 1, [1.0], [])
    assert webhooks.flaw(owed) is None
    assert (webhooks.flaw(replace(owed, **{field: number})) or "").startswith(f"{field}: must be ")
    assert webhooks.flaw(Settled("t", "delivered", tries=1)) is None
    assert webhooks.flaw(Settled("t", "delivered", tries=-1)) is not None
