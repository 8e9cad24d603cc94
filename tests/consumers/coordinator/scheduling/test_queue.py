"""A waiting session is served once, in turns of 16, and the queue keeps nothing of sessions that are over."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from consumers.coordinator.scheduling.queue import TURN, QueueKey, SessionQueue
from topics.types.session import Stage

INIT = QueueKey(Stage.INIT, "default", 0, "")
priorities = st.sampled_from([0, 5, 100])
users = st.sampled_from(["", "ann", "bob"])


def serve(queue: SessionQueue, key: QueueKey) -> tuple[str, int] | None:
    """Remove and return the session that the next slot for this key serves."""
    found = queue.next(*key)
    if found is not None:
        queue.discard(key, *found)
    return found


def served(queue: SessionQueue, slots: int) -> str:
    """Tasks in the order in which this many slots serve them: `aaab`."""
    return "".join(found[0] for found in (serve(queue, INIT) for _ in range(slots)) if found is not None)


def filled(**tasks: int) -> SessionQueue:
    """One user's tasks, by name, each with its number of sessions."""
    queue = SessionQueue()
    for name, samples in tasks.items():
        for index in range(samples):
            queue.add(INIT, name, index)
    return queue


def is_empty(queue: SessionQueue) -> bool:
    return not queue.stage_pools() and not queue.staged_pools()


def test_siblings_start_together_and_a_large_task_does_not_block_the_next() -> None:
    assert served(filled(a=40, b=4, c=16), 99) == "a" * 16 + "bbbb" + "c" * 16 + "a" * 24


def test_a_session_that_comes_back_is_near_the_front_of_its_task() -> None:
    queue = filled(a=40, b=40)
    assert [serve(queue, INIT) for _ in range(3)] == [("a", 0), ("a", 1), ("a", 2)]
    queue.add(INIT, "a", 1, again=True)
    assert serve(queue, INIT) == ("a", 1)


def test_a_task_that_has_begun_goes_before_those_that_have_not() -> None:
    queue = filled(a=2, b=2, c=2)
    served(queue, 4)
    queue.add(INIT, "a", 0, again=True)
    assert served(queue, 9) == "acc"


def test_a_turn_continues_after_its_task_had_no_sessions_for_a_moment() -> None:
    queue = filled(a=2, b=20)
    served(queue, 2)
    queue.add(INIT, "a", 2)
    queue.add(INIT, "a", 3)
    assert served(queue, 4) == "aabb"


def test_a_session_that_comes_back_interrupts_no_turn() -> None:
    queue = filled(a=20, b=2)
    served(queue, 3)
    queue.add(INIT, "z", 0, again=True)
    assert served(queue, 16) == "a" * 13 + "zbb"


def test_a_higher_priority_that_has_come_meanwhile_goes_first_and_a_lower_one_never() -> None:
    queue = SessionQueue()
    urgent, usual = QueueKey(Stage.RUN, "p", 100, "ann"), QueueKey(Stage.RUN, "p", 0, "bob")
    queue.add(usual, "u", 0)
    assert queue.next(*urgent) is None
    queue.add(urgent, "v", 0)
    assert queue.next(*usual) == ("v", 0)


def test_another_user_of_the_same_priority_takes_a_slot_whose_user_has_gone() -> None:
    queue = SessionQueue()
    queue.add(INIT._replace(user="ann"), "a", 7)
    assert queue.next(*INIT._replace(user="bob")) == ("a", 7)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_each_round_serves_every_task_a_turn(sizes: list[int]) -> None:
    """The bound of deficit round robin: between any two of its sessions that wait, a task waits a turn of each other at most."""
    queue = filled(**{f"t{n}": size for n, size in enumerate(sizes)})
    done: Counter[str] = Counter()
    for _ in range(sum(sizes)):
        found = serve(queue, INIT)
        assert found is not None
        done[found[0]] += 1
        for n, size in enumerate(sizes):
            for m, other in enumerate(sizes):
                if done[f"t{n}"] < size and done[f"t{m}"] < other:
                    assert abs(done[f"t{n}"] - done[f"t{m}"]) <= TURN
    assert is_empty(queue)


sessions = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 70))
steps = st.lists(
    st.tuples(st.sampled_from(["add", "cancel", "serve"]), priorities, users, sessions, st.booleans()),
    max_size=200,
)


@given(steps)
def test_no_session_is_lost_or_served_twice_and_none_before_a_higher_priority(
    changes: list[tuple[str, int, str, tuple[str, int], bool]],
) -> None:
    """Compared with a plain set of waiting sessions. A task has one priority and one user, here part of its name."""
    queue = SessionQueue()
    model: dict[tuple[str, int], QueueKey] = {}
    for what, priority, user, (task, index), again in changes:
        key = QueueKey(Stage.RUN, "p", priority, user)
        name = f"{task}-{priority}-{user}"
        match what:
            case "add" if (name, index) not in model:
                queue.add(key, name, index, again=again)
                model[name, index] = key
            case "cancel":
                queue.discard(key, name, index)
                model.pop((name, index), None)
            case "serve":
                found = queue.next(*key)
                highest = max((p.priority for p in model.values()), default=-1)
                if highest < priority:
                    assert found is None
                    continue
                assert found is not None
                assert model[found].priority == highest
                if any(p == key._replace(priority=highest) for p in model.values()):
                    assert model[found].user == user
                queue.discard(model.pop(found), *found)
        assert queue.waiting(Stage.RUN, "p") == Counter(p.priority for p in model.values())
        waiting = {
            (level, who): tasks.sessions
            for level in queue.waiting(Stage.RUN, "p")
            for who, tasks in queue.users(Stage.RUN, "p", level).items()
        }
        assert waiting == Counter((p.priority, p.user) for p in model.values())
    for session, key in model.items():
        queue.discard(key, *session)
    assert is_empty(queue)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), priorities, users), max_size=60))
def test_active_and_staged_sessions_are_counted_once(changes: list[tuple[bool, int, int, str]]) -> None:
    queue = SessionQueue()
    model: dict[str, QueueKey] = {}
    for is_active, number, priority, user in changes:
        session_id, key = f"t.{number}", QueueKey(Stage.INIT, "p", priority, user)
        if is_active:
            queue.activate(key, session_id)
            queue.stage("p", priority, session_id)
            model[session_id] = key
        else:
            queue.deactivate(session_id)
            queue.unstage("p", session_id)
            model.pop(session_id, None)
        assert queue.active_by_user(Stage.INIT, "p") == Counter(p.user for p in model.values())
        assert (
            queue.active_by_priority(Stage.INIT, "p")
            == Counter(p.priority for p in model.values())
            == queue.staged("p")
        )
        assert set(queue.staged_sessions()) == set(model)
    for session_id in model:
        queue.deactivate(session_id)
        queue.unstage("p", session_id)
    assert is_empty(queue)
