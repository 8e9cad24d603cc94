"""Whatever the order of the log, and wherever a trainer is killed: from its last checkpoint on it gets each item once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.trainer.groups import Group, GroupDeadline
from polar.trainer.progress import Fold, Groups, Mark, State, Trajectories
from tests.polar.trainer.writing import finished, trajectory
from topics.log.last_read import LastRead
from topics.trajectories import Output
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory

Log = dict[int, list[tuple[int, Output]]]
"""By partition: offsets, ascending, with the holes that ends of transactions leave."""
Made = Callable[[Mapping[int, Mark], Counter[str]], Fold[Any]]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """One to three partitions of up to four groups of up to three samples, interleaved; a group's end comes last."""
    log: Log = {}
    for partition in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
        groups = {f"p{partition}-{number}": size for number, size in enumerate(sizes)}
        turns = draw(st.permutations([task for task, size in groups.items() for _ in range(size + 1)]))
        left = {task: draw(st.permutations(range(size))) for task, size in groups.items()}
        offset, records = draw(st.integers(0, 3)), []
        for task in turns:
            samples = groups[task]
            index = left[task].pop() if left[task] else None
            record = finished(task, [1.0] * samples) if index is None else trajectory(task, index, samples)
            records.append((offset, record))
            offset += draw(st.integers(1, 3))
        log[partition] = records
    return log


@dataclass
class Trainer:
    """Reads a log in some order. What it was given before a checkpoint is part of it, as weights are."""

    log: Log
    make: Made
    skipped: Counter[str]

    def __post_init__(self) -> None:
        self.given: list[Any] = []
        self._restore({partition: Mark(0, 0) for partition in self.log})
        self.checkpoint()

    def _restore(self, marks: Mapping[int, Mark]) -> None:
        self.fold = self.make(marks, self.skipped)
        self.unread = {
            partition: [entry for entry in records if entry[0] >= marks[partition].start]
            for partition, records in self.log.items()
        }

    def step(self, partition: int) -> None:
        if self.unread[partition]:
            offset, record = self.unread[partition].pop(0)
            item = self.fold.take(partition, offset, record, written_ms=offset)
            self.given += [] if item is None else [item]
            self.hand_out()

    def hand_out(self) -> None:
        """What is due."""
        while (item := self.fold.due()) is not None:
            self.given.append(item)

    def wait(self) -> None:
        """No record comes for so long that nothing can be waited for any more."""
        self.fold.passed(10**9)
        self.hand_out()

    def reach(self, partition: int) -> None:
        """A reader's position lies behind the ends of transactions, before the next record."""
        if self.unread[partition]:
            self.fold.reached(partition, self.unread[partition][0][0])

    def checkpoint(self) -> None:
        state = State("polar", "trajectories", None, self.fold.marks()).to_dict()
        self.saved = json.dumps(state), list(self.given)

    def die(self) -> None:
        text, given = self.saved
        self.given = list(given)
        self._restore(State.from_dict(json.loads(text)).partitions)


MOVES = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 6), st.sampled_from(["read on", "reach", "wait", "checkpoint", "die", "die"])
    ),
    min_size=4,
    max_size=20,
)
"""A partition, how many of its records are read, and what happens then."""


def given_in_the_end(log: Log, make: Made, moves: list[tuple[int, int, str]]) -> list[Any]:
    trainer = Trainer(log, make, Counter())
    for number, steps, then in moves:
        partition = number % len(log)
        for _ in range(steps):
            trainer.step(partition)
        match then:
            case "reach":
                trainer.reach(partition)
            case "wait":
                trainer.wait()
            case "checkpoint":
                trainer.checkpoint()
            case "die":
                trainer.die()
    for partition, unread in trainer.unread.items():
        while unread:
            trainer.step(partition)
    assert not trainer.skipped.keys() - {"late_sample"}
    return trainer.given


def each_once(log: Log, groups: list[Group]) -> bool:
    """Whether the groups are those that the log ends."""
    ends = [record for records in log.values() for _, record in records if not isinstance(record, Trajectory)]
    return sorted(group.task_id for group in groups) == sorted(end.task_id for end in ends)


@settings(max_examples=400)
@given(logs(), MOVES)
def test_each_group_is_given_once_whole_and_in_order(log: Log, moves: list[tuple[int, int, str]]) -> None:
    groups: list[Group] = given_in_the_end(log, Groups, moves)
    assert each_once(log, groups)
    for group in groups:
        samples = len(group.trajectories)
        assert [one.sample_index for one in group.trajectories] == list(range(samples))
        assert {(one.task_id, one.num_samples) for one in group.trajectories} == {(group.task_id, samples)}


@settings(max_examples=200)
@given(logs(), MOVES, st.integers(1, 3), st.integers(0, 8))
def test_each_group_is_given_once_though_some_leave_early(
    log: Log, moves: list[tuple[int, int, str]], at_least: int, within_ms: int
) -> None:
    def make(marks: Mapping[int, Mark], skipped: Counter[str]) -> Groups:
        return Groups(marks, skipped, lambda: GroupDeadline(at_least, within_ms))

    groups: list[Group] = given_in_the_end(log, make, moves)
    assert each_once(log, groups)
    for group in groups:
        indexes = [one.sample_index for one in group.trajectories]
        assert indexes == sorted(set(indexes))
        assert len(indexes) >= min(at_least, group.trajectories[0].num_samples)


def early(at_least: int = 2, within_ms: int = 100, marks: Mapping[int, Mark] | None = None) -> Groups:
    return Groups(marks or {0: Mark(0, 0)}, Counter(), lambda: GroupDeadline(at_least, within_ms))


def test_a_group_leaves_when_its_time_has_come_with_the_samples_that_are_there() -> None:
    fold = early()
    for offset, index in enumerate((2, 0)):
        assert fold.take(0, offset, trajectory("t", index, 4), written_ms=1000) is None
    assert fold.due_ms() == 1100
    fold.passed(1099)
    assert fold.due() is None
    fold.passed(1100)
    group = fold.due()
    assert group is not None
    assert [one.sample_index for one in group.trajectories] == [0, 2]
    assert fold.due() is None
    assert fold.marks() == {0: Mark(2, 2, ["t"], LastRead(1, 1000))}
    assert fold.take(0, 2, trajectory("t", 1, 4)) is fold.take(0, 3, finished("t", [1.0] * 4)) is None
    assert fold.skipped == {"late_sample": 1}
    assert fold.marks() == {0: Mark(4, 4, last=LastRead(3, 0))}


def test_after_its_time_a_group_leaves_as_soon_as_it_has_enough_usable_samples() -> None:
    fold = early()
    fold.take(0, 0, trajectory("t", 0, 4), written_ms=1000)
    fold.take(0, 1, trajectory("t", 1, 4, reward=None), written_ms=1000)
    fold.passed(2000)
    assert fold.due() is None
    assert fold.due_ms() is None
    fold.take(0, 2, trajectory("t", 2, 4), written_ms=2000)
    group = fold.due()
    assert group is not None
    assert group.rewards == [1.0, None, 1.0]


def test_the_log_tells_the_time_so_that_a_trainer_that_was_away_loses_no_sample() -> None:
    """All four lie on the log within the deadline, and are read an hour later."""
    fold = early(at_least=1)
    for index in range(4):
        fold.take(0, index, trajectory("t", index, 4), written_ms=1000 + index)
        assert fold.due() is None
    group = fold.take(0, 4, finished("t", [1.0] * 4), written_ms=1010)
    assert group is not None
    assert len(group.trajectories) == 4


def test_a_state_knows_of_a_group_that_left_early_until_its_end_was_read() -> None:
    fold = early(marks={0: Mark(0, 3, ["t"])})
    assert fold.take(0, 1, trajectory("t", 0, 3), written_ms=1) is None
    fold.passed(10**6)
    assert fold.due() is None, "not while the log is read again, and not a second time"
    fold.take(0, 3, trajectory("t", 1, 3))
    assert fold.skipped == {"late_sample": 1}, "what was seen before the state isn't counted again"
    assert fold.marks() == {0: Mark(4, 4, ["t"], LastRead(3, 0))}


@given(logs(), MOVES)
def test_each_trajectory_is_given_once_and_in_the_order_of_its_partition(
    log: Log, moves: list[tuple[int, int, str]]
) -> None:
    given: list[Trajectory] = given_in_the_end(log, Trajectories, moves)
    assert len(given) == len({one.session_id for one in given})
    for partition, records in log.items():
        written = [record.session_id for _, record in records if isinstance(record, Trajectory)]
        assert [one.session_id for one in given if one.task_id.startswith(f"p{partition}-")] == written


def test_a_group_that_began_before_reading_did_is_counted_and_not_given() -> None:
    skipped: Counter[str] = Counter()
    fold = Groups({0: Mark(5, 5)}, skipped)
    assert fold.take(0, 5, trajectory("t", 1, 2)) is None
    assert fold.take(0, 6, finished("t", [1.0, 1.0])) is None
    assert skipped == {"incomplete_group": 1}
    assert fold.marks() == {0: Mark(7, 7, last=LastRead(6, 0))}


def test_a_state_names_the_first_record_of_the_oldest_group_on_its_way() -> None:
    fold = Groups({0: Mark(0, 0)}, Counter())
    records = [trajectory("a", 0, 2), trajectory("b"), finished("b", [1.0]), trajectory("c")]
    (group,) = [group for offset, record in enumerate(records) if (group := fold.take(0, offset, record))]
    assert group.task_id == "b"
    assert fold.marks() == {0: Mark(0, 4, last=LastRead(3, 0))}


def test_a_state_taken_while_reading_again_still_tells_what_was_given() -> None:
    log = list(enumerate([trajectory("a", 0, 2), trajectory("b"), finished("b", [1.0])]))
    given = []
    marks = {0: Mark(0, 0)}
    for read in (3, 1, 3):
        fold = Groups(marks, Counter())
        given += [group.task_id for offset, record in log[:read] if (group := fold.take(0, offset, record))]
        marks = fold.marks()
    assert given == ["b"]


def test_a_group_tells_rewards_and_statuses_by_sample_index() -> None:
    group = Group("t", [trajectory("t", 0, 2, 0.5), trajectory("t", 1, 2, None)])
    assert group.rewards == [0.5, None]
    assert group.statuses == ["COMPLETED", "FAILED"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "state"),
        ({"namespace": "polar", "topic": "trajectories", "items": "rows", "partitions": {}}, "state"),
        ({"namespace": "polar", "topic": "trajectories", "items": None, "partitions": {"x": {}}}, "state"),
        (
            {"namespace": "polar", "topic": "trajectories", "items": None, "partitions": {}, "version": 2},
            "state.version",
        ),
    ],
)
def test_what_is_no_state_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as raised:
        State.from_dict(given)
    assert raised.value.field == field
