"""A task as a whole: with enough usable trajectories its other sessions are cancelled; what never comes is forgotten."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from consumers.coordinator.commands import TaskExpired
from consumers.coordinator.deadlines import EXPIRY_MS
from tests.consumers.coordinator.bench import PLAN, Bench, submitted
from topics.control import CloseKey, Discard, Revoke
from topics.events import CancelRequested, GroupEmitted, RunFinished, Stopped, TrajectoryEmitted
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, Stage, Status


def enough(bench: Bench, samples: int, usable: int) -> None:
    bench.give(replace(submitted(samples), plan=replace(PLAN, usable=usable)))


def out(bench: Bench, session_id: str, reward: float | None = 1.0, trainable_tokens: int = 7) -> TrajectoryEmitted:
    """A session's way to its end, cut short by a cancel, as trainers then read of it."""
    bench.give(CancelRequested("f", "t", session_id))
    return TrajectoryEmitted("f", session_id, 1, 1, trainable_tokens, 1, Status.COMPLETED, None, reward)


def test_with_enough_usable_trajectories_the_others_are_cancelled_wherever_they_stand() -> None:
    bench = Bench()
    enough(bench, samples=6, usable=1)
    for session_id in ("t.0", "t.1"):
        bench.init(session_id)
    bench.assign(Stage.RUN)
    bench.claim(Stage.RUN, "r", "t.0")
    bench.assign(Stage.RUN)
    bench.claim(Stage.RUN, "r1", "t.1")
    bench.give(RunFinished("f", "t.1", 1, "r1", Status.COMPLETED, 0))
    bench.init("t.2")
    bench.assign(Stage.INIT)
    bench.claim(Stage.INIT, "i", "t.3")
    stopped = bench.give(out(bench, "t.5"))
    assert stopped.commands == (
        Revoke("t.0", "r", "cancelled"),
        CloseKey("t.0", "r"),
        Discard("t.1", "i1", {"dir": "x"}),
        Discard("t.2", "i1", {"dir": "x"}),
        Revoke("t.3", "i", "cancelled"),
    )
    bench.give(Stopped("f", "t.0", 1, "r"))
    stages = dict(zip([f"t.{index}" for index in range(5)], ["run", "queue", "queue", "init", "queue"], strict=True))
    for session_id, stage in stages.items():
        build = bench.builds[session_id]
        assert build.error is not None
        assert (build.status, build.error.stage, build.error.kind, build.error.code) == (
            Status.CANCELLED,
            stage,
            Kind.BUDGET,
            "early_stop",
        )
    for session_id in stages:
        bench.give(TrajectoryEmitted("f", session_id, 1))
    assert [group.rewards for group in bench.groups] == [[None] * 5 + [1.0]]


@pytest.mark.parametrize(("reward", "tokens"), [(None, 7), (1.0, 0)], ids=["no reward", "nothing to train"])
def test_what_no_trainer_can_use_does_not_count(reward: float | None, tokens: int) -> None:
    bench = Bench()
    enough(bench, samples=3, usable=1)
    bench.give(out(bench, "t.0", reward, tokens))
    assert bench.session("t.2").phase is Phase.QUEUED
    bench.give(out(bench, "t.1", reward=0.0))
    assert bench.session("t.2").phase is Phase.BUILDING, "0 is a reward"


def test_what_finishes_late_is_kept_as_it_is() -> None:
    bench = Bench()
    enough(bench, samples=3, usable=1)
    late = out(bench, "t.1")
    failed = SessionError("run", Kind.INPUT, "bad_input", "no such folder")
    bench.give(CancelRequested("f", "t", "t.2"), out(bench, "t.0"), late)
    bench.give(TrajectoryEmitted("f", "t.2", 1, status=Status.FAILED, error=failed))
    assert [(group.rewards, group.statuses) for group in bench.groups] == [
        ([1.0, 1.0, None], [Status.COMPLETED, Status.COMPLETED, Status.FAILED])
    ]
    task = bench.table.task("t")
    assert task is not None
    assert (task.usable, task.ended) == (2, 3)


def test_a_cancel_of_a_task_that_never_comes_is_forgotten_and_of_one_that_comes_late_only_after_its_end() -> None:
    bench = Bench()
    bench.give(CancelRequested("f", "typo"), CancelRequested("f", "t", "t.1"), CancelRequested("f", "t", "t.1"))
    assert bench.skipped == {"already_cancelled": 1}
    bench.now = EXPIRY_MS - 1
    assert bench.table.pop_expired(bench.now) == []
    bench.give(submitted(2))
    assert bench.builds["t.1"].status is Status.CANCELLED
    bench.now += 1
    assert bench.table.pop_expired(bench.now) == ["typo"]
    bench.give(TaskExpired("typo"))
    assert bench.table.task("typo") is None
    assert bench.give(GroupEmitted("f", "t")).skipped == "group_goes_on"
    bench.give(CancelRequested("f", "t"), *(TrajectoryEmitted("f", f"t.{index}", 1) for index in range(2)))
    bench.give(GroupEmitted("f", "t"))
    assert bench.table.pop_expired(bench.now + EXPIRY_MS - 1) == []
    assert bench.table.pop_expired(bench.now + EXPIRY_MS) == ["t"]
