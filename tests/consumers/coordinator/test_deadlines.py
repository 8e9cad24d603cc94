"""Deadlines on two clocks: a run's stands still while the fleet is paused, whichever process coordinates it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumers.coordinator.commands import DeadlinePassed, FleetPaused, FleetResumed
from consumers.coordinator.deadlines import EXPIRY_MS, GRACE_MS, QUEUE_MS, TICKET_MS, Pauses, deadline_of
from consumers.coordinator.decide import OPENED, TRANSITIONS
from consumers.coordinator.state import Table
from tests.consumers.coordinator.bench import PLAN, Bench, submitted
from topics import tasks
from topics.completions import Build, Open
from topics.contract.codec import encode
from topics.contract.topic import DAY_MS
from topics.events import SessionOpenRequested
from topics.sessions import CODEC, Position
from topics.types.session import Phase, SessionState, Stage, TaskState

TTL_MS = 20_000
LIMITS_MS = {"t.0": round(PLAN.run_budget_s * 1000) + GRACE_MS, "o.0": TTL_MS}


@dataclass
class Written:
    """What a coordinator has committed, and how long each run had worked by then."""

    rows: list[bytes]
    worked: dict[str, int]
    opened: dict[str, Open]
    builds: dict[str, Build]


class Fleet(Bench):
    """Runs under a coordinator that may be paused, and may die at any moment and be followed by another."""

    def __init__(self) -> None:
        super().__init__()
        self.is_paused = False
        self.worked: dict[str, int] = {}
        self.give(submitted())
        self.init()
        self.assign(Stage.RUN)
        self.written = self.commit()

    def commit(self) -> Written:
        rows = [self.table.task("t"), self.table.task("o"), *self.table.sessions()]
        position = Position(0, self.now, self.table.pauses.total_ms(self.now))
        encoded = [encode(row) for row in [*rows, position] if row is not None]
        self.written = Written(encoded, dict(self.worked), dict(self.opened), dict(self.builds))
        return self.written

    def begin(self) -> None:
        if not self.worked:
            self.claim(Stage.RUN, "r1")
            self.give(SessionOpenRequested("f", "o", "o1", TTL_MS))
            self.worked = {"t.0": 0, "o.0": 0}
            self.commit()

    def turn(self) -> None:
        self.is_paused = not self.is_paused
        self.give(FleetPaused() if self.is_paused else FleetResumed())

    def pass_time(self, ms: int) -> None:
        self.now += ms
        if not self.is_paused:
            self.worked = {name: worked + ms for name, worked in self.worked.items()}
        self.judge()

    def judge(self) -> None:
        self.give(*(DeadlinePassed(session_id) for session_id in self.table.pop_due(self.now)))
        for name, worked in self.worked.items():
            ended = self.session(name).phase is not Phase.RUNNING
            assert ended == (worked >= LIMITS_MS[name]), (name, worked)

    def die(self) -> None:
        """What wasn't written is lost, clocks included; the next coordinator learns from `polar.fleet` whether it is paused."""
        self.table = Table(0)
        rows = [CODEC.decode(row) for row in self.written.rows]
        self.table.fill(row for row in rows if isinstance(row, TaskState | SessionState))
        (position,) = (row for row in rows if isinstance(row, Position))
        self.now = position.clock_ms
        self.table.pauses = Pauses(position.paused_ms)
        self.worked = dict(self.written.worked)
        self.opened, self.builds = dict(self.written.opened), dict(self.written.builds)
        if self.is_paused:
            self.give(FleetPaused())
        self.judge()


STEPS = st.one_of(
    st.sampled_from(["begin", "turn", "turn", "die", "commit"]),
    st.sampled_from([1, 500, TTL_MS // 2, TTL_MS - 1, LIMITS_MS["t.0"] // 2, LIMITS_MS["t.0"] - 1]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=30))
@example(["begin", LIMITS_MS["t.0"] - 1, 10_000, "die", LIMITS_MS["t.0"] // 2, 10_000])
def test_a_run_ends_after_its_budget_of_unpaused_time_through_any_pauses_and_restarts(steps: list[str | int]) -> None:
    fleet = Fleet()
    for step in steps:
        match step:
            case int():
                fleet.pass_time(step)
            case "begin":
                fleet.begin()
            case "turn":
                fleet.turn()
            case "die":
                fleet.die()
            case "commit":
                fleet.commit()


def test_a_pause_that_is_told_twice_is_one() -> None:
    bench = Bench()
    bench.give(FleetPaused())
    bench.now = 5_000
    assert bench.give(FleetPaused()).skipped == "already_paused"
    assert bench.table.pauses.total_ms(7_000) == 7_000
    bench.now = 8_000
    bench.give(FleetResumed())
    assert bench.give(FleetResumed()).skipped == "not_paused"
    assert bench.table.pauses.total_ms(9_000) == 8_000


def test_waits_fit_how_long_a_task_is_kept() -> None:
    """Nobody waits for a task that is gone, and a task that may be read again is still known."""
    kept = tasks.TOPIC.broker_config(1)
    assert int(kept["retention.ms"]) - DAY_MS == QUEUE_MS
    assert int(kept["retention.ms"]) + int(kept["segment.ms"]) < EXPIRY_MS, (
        "a segment goes when its newest record is due"
    )


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.ENDED])
def test_each_phase_that_waits_ends_by_itself(phase: Phase) -> None:
    task, opened = TaskState("t", 1, plan=PLAN), TaskState("o", 1, plan=PLAN, opened_at=0)
    assert deadline_of(SessionState("t.0", "t", 0, phase, 0), task) is not None
    assert deadline_of(SessionState("o.0", "o", 0, phase, 0, ttl_ms=TTL_MS), opened) is not None
    assert (phase, DeadlinePassed) in TRANSITIONS | OPENED


@pytest.mark.parametrize("is_paused", [False, True])
def test_what_waits_for_a_slot_does_not_wait_longer_for_a_pause(is_paused: bool) -> None:
    bench = Bench()
    bench.give(submitted())
    bench.assign(Stage.INIT)
    if is_paused:
        bench.give(FleetPaused())
    bench.pass_time(TICKET_MS)
    assert bench.session().ticket_released_at is None
    bench.now = QUEUE_MS
    assert bench.table.pop_due(bench.now) == ["t.0"]
