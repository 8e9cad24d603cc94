"""A table that is lost at any moment and made again from the log: whatever had ended stays ended, all else ends once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.coordinator.rebuilding import Rebuilding
from consumers.coordinator.state import Table
from tests.consumers.coordinator.bench import submitted
from tests.consumers.coordinator.test_interleavings import OPENED, STEPS, World
from topics.completions import Build, CallRecord, CloseGroup, Open
from topics.events import (
    Fact,
    GroupEmitted,
    SessionCloseRequested,
    SessionOpenRequested,
    SessionOpenWithdrawn,
    TrajectoryEmitted,
)
from topics.types.session import Phase, Status


class LosingWorld(World):
    """Keeps both logs, as Kafka does."""

    def __init__(self, seed: int, samples: int) -> None:
        self.log: list[CallRecord] = []
        super().__init__(seed, samples)

    def _written(self, record: Open | Build | CloseGroup) -> None:
        super()._written(record)
        self.log.append(record)

    def lose_the_table(self) -> None:
        """A coordinator then starts from what is made here."""
        ended = {s.session_id for s in self.table.sessions() if s.phase is Phase.ENDED}
        rebuilding = Rebuilding()
        for record in self.log:
            rebuilding.on_call_record(record)
        for fact in self.sent:
            assert isinstance(fact, Fact)
            rebuilding.on_fact(fact, self.now)
        self.table = Table(0)
        for made in rebuilding.decisions(self.now):
            self.table.apply(made)
            for record in made.records:
                self._written(record)
        again = {s.session_id for s in self.table.sessions() if s.phase is Phase.ENDED}
        assert again == ended, "what has ended stays ended, and nothing else has"


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.lists(st.sampled_from([*STEPS, *["lose the table"] * 2]), min_size=20, max_size=160),
)
def test_every_session_ends_once_whenever_the_table_is_lost(seed: int, samples: int, steps: list[str]) -> None:
    world = LosingWorld(seed, samples)
    for step in steps:
        if step == "lose the table":
            world.lose_the_table()
        else:
            world.step(step)
        world.check()
    world.end_all()
    phases = {s.session_id: s.phase for s in world.table.sessions()}
    assert set(phases.values()) == {Phase.ENDED}, phases
    tasks = {s.task_id for s in world.table.sessions()}
    assert len(phases) == samples + sum(OPENED[task_id] for task_id in tasks - {"t"})
    emitted = [fact.session_id for fact in world.sent if isinstance(fact, TrajectoryEmitted)]
    assert sorted(emitted) == sorted(phases), "each has one trajectory"
    assert sorted(group.task_id for group in world.groups) == sorted(tasks)
    for session_id, build in world.builds.items():
        is_opened = build.task_id in OPENED
        assert not is_opened or (build.status is Status.COMPLETED) == (build.reward is not None)
        if build.reward is not None:
            assert build.reward == world.rewards[session_id], "no reward is invented"


def test_a_closed_group_stays_closed_if_the_ends_of_its_sessions_have_left_the_log() -> None:
    rebuilding = Rebuilding()
    for fact in (submitted(2), TrajectoryEmitted("f", "t.1", 1), GroupEmitted("g", "t")):
        rebuilding.on_fact(fact, 7)
    (made,) = rebuilding.decisions(7)
    assert [(row.session_id, row.phase) for row in made.sessions] == [("t.0", Phase.ENDED), ("t.1", Phase.ENDED)]
    assert made.records == ()
    assert [(row.closed_at, row.body) for row in made.tasks] == [(7, None)]


@pytest.mark.parametrize("end", ["none", "build", "trajectory"])
def test_a_label_survives_the_loss_of_the_table(end: str) -> None:
    rebuilding = Rebuilding()
    rebuilding.on_call_record(Open("o.0", 1, "c"))
    rebuilding.on_fact(SessionOpenRequested("f1", "o", "c", 1000, label="mine"), 7)
    if end == "build":
        built = Build("o.0", "o", 0, 1, 1, "c", Status.COMPLETED, "prefix_merging", b"{}", "external", label="mine")
        rebuilding.on_call_record(built)
    if end == "trajectory":
        rebuilding.on_fact(TrajectoryEmitted("f2", "o.0", 1), 7)
    (made,) = rebuilding.decisions(7)
    phase = {"none": Phase.CLOSING, "build": Phase.BUILDING, "trajectory": Phase.ENDED}[end]
    assert [(row.phase, row.label) for row in made.sessions] == [(phase, "mine")]


def test_a_session_that_was_closed_isn_t_free_again_because_its_open_was_withdrawn_later() -> None:
    request = SessionOpenRequested("f1", "o", "c", 1000)
    close, withdrawal = SessionCloseRequested("f2", "o.0", 0.5), SessionOpenWithdrawn("f3", "o", "c")
    for facts, phase in (
        ((request, close, withdrawal), Phase.CLOSING),
        ((request, withdrawal, close), Phase.UNOPENED),
        ((close, request, withdrawal), Phase.UNOPENED),
    ):
        rebuilding = Rebuilding()
        rebuilding.on_call_record(Open("o.0", 1, "c"))
        for fact in facts:
            rebuilding.on_fact(fact, 7)
        (made,) = rebuilding.decisions(7)
        assert [row.phase for row in made.sessions] == [phase]
