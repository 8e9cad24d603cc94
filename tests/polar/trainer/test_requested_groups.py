"""Which groups a call waits for and returns: in the order of its tasks, each once, across retries, strangers and a restart."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.client import Client
from polar.trainer.groups import Group
from polar.trainer.requested_groups import TRIES, RequestedGroups, Wanted
from tests.polar.coordinator import task
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError

DEADLINE_S = 60.0


def keep(group: Group, counts: Counter[str]) -> Group | None:
    return group


def drops(*task_ids: str) -> Callable[[Group, Counter[str]], Group | None]:
    def rule(group: Group, counts: Counter[str]) -> Group | None:
        counts["stale_group"] += group.task_id in task_ids
        return None if group.task_id in task_ids else group

    return rule


def test_groups_come_back_in_the_order_of_the_tasks() -> None:
    wanted = Wanted(["a", "b", "c"], keep, set(), Counter())
    assert [wanted.take(Group(name, [])) for name in ("c", "a", "b")] == [None] * 3
    assert not wanted.waiting
    assert [group.task_id for group in wanted.groups()] == ["a", "b", "c"]


def test_a_dropped_group_is_sampled_again_under_another_id() -> None:
    counts: Counter[str] = Counter()
    wanted = Wanted(["a", "b"], drops("a", "a-2"), set(), counts)
    assert wanted.take(Group("a", [])) == "a-2"
    assert wanted.take(Group("a-2", [])) == "a-3"
    assert wanted.waiting == {"b": 1, "a-3": 0}
    assert wanted.take(Group("b", [])) is wanted.take(Group("a-3", [])) is None
    assert [group.task_id for group in wanted.groups()] == ["a-3", "b"]
    assert counts == {"stale_group": 2}


def test_a_group_that_nobody_waits_for_is_never_returned_later() -> None:
    """A later step of a process that was killed: the weights that sampled it are no checkpoint's."""
    spent: set[str] = set()
    counts: Counter[str] = Counter()
    wanted = Wanted(["a"], keep, spent, counts)
    assert wanted.take(Group("b", [])) is wanted.take(Group("a", [])) is None
    assert counts == {"unrequested": 1}
    assert Wanted(["b"], keep, spent, counts).waiting == {"b-2": 0}


def test_what_is_dropped_again_and_again_ends_the_wait() -> None:
    wanted = Wanted(["a"], lambda *_: None, set(), Counter())
    for attempt in range(2, TRIES + 1):
        assert wanted.take(Group("a" if attempt == 2 else f"a-{attempt - 1}", [])) == f"a-{attempt}"
    with pytest.raises(NotReadyError, match="3 groups of a were dropped"):
        wanted.take(Group(f"a-{TRIES}", []))


def test_an_id_requested_twice_is_refused() -> None:
    with pytest.raises(InputError, match="task_id: is requested twice at a time"):
        Wanted(["a", "b", "a"], keep, set(), Counter())


@given(
    calls=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True), min_size=1, max_size=4),
    stale=st.sets(st.sampled_from([f"t{number}{suffix}" for number in range(6) for suffix in ("", "-2")])),
    strangers=st.lists(st.integers(0, 5), max_size=6),
    random=st.randoms(use_true_random=False),
)
def test_whatever_comes_each_call_gets_its_groups_and_no_group_is_returned_twice(
    calls: list[list[int]], stale: set[str], strangers: list[int], random: object
) -> None:
    """The log has each task's group once; groups of tasks that are requested later, or never, come between."""
    spent: set[str] = set()
    counts: Counter[str] = Counter()
    on_log: set[str] = set()
    returned: list[str] = []
    for number, call in enumerate(calls):
        names = [f"c{number}t{each}" for each in call]
        wanted = Wanted(names, drops(*(f"c{number}{name}" for name in stale)), spent, counts)
        log = [*wanted.waiting, *(f"c{number + each % 2}t{each}" for each in strangers)]
        random.shuffle(log)  # type: ignore[attr-defined]
        while wanted.waiting:
            task_id = log.pop(0)
            if task_id in on_log:
                continue
            on_log.add(task_id)
            if (again := wanted.take(Group(task_id, []))) is not None:
                log.insert(len(log) // 2, again)
        groups = [group.task_id for group in wanted.groups()]
        assert [task_id.partition("-")[0] for task_id in groups] == names
        assert not {f"c{number}{name}" for name in stale} & set(groups)
        returned += groups
    assert len(set(returned)) == len(returned)
    assert not spent & set(returned)


async def test_a_process_that_was_killed_resumes_with_the_sessions_that_ran(settings: Settings, system: None) -> None:
    """The second process has the state of before the step, as a checkpoint holds it, and one group on the log that it doesn't request."""
    steps = [[task(f"s{step}-{at}", 2) for at in range(3)] for step in range(3)]
    async with asyncio.timeout(DEADLINE_S), Client(settings).table() as table:
        async with RequestedGroups(settings, table, run=None) as requested:
            await requested.groups(steps[0], keep)
            saved = json.loads(json.dumps(requested.state_dict()))
            first = await requested.groups(steps[1], keep)
            await requested.groups(steps[2][:1], keep)
        async with RequestedGroups(settings, table, run=None) as requested:
            requested.load_state_dict(saved)
            again = await requested.groups(steps[1], keep)
            last = await requested.groups(steps[2], keep)
    assert [group.task_id for group in again] == [group.task_id for group in first] == ["s1-0", "s1-1", "s1-2"]
    assert [group.task_id for group in last] in (["s2-0", "s2-1", "s2-2"], ["s2-0-2", "s2-1", "s2-2"])
    with pytest.raises(InputError, match="state: not a state_dict"):
        RequestedGroups(settings, table, run=None).load_state_dict({"consumer": {}})
