"""Who waits is served once, in turns of 16, and the index forgets what is over."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from consumers.coordinator.scheduling.queue import TURN, Place, Waiting
from topics.types.session import Stage

INIT = Place(Stage.INIT, "default", 0, "")
priorities = st.sampled_from([0, 5, 100])
users = st.sampled_from(["", "ann", "bob"])


def serve(waiting: Waiting, place: Place) -> tuple[str, int] | None:
    """What the next slot for the place goes to; it waits no longer."""
    found = waiting.next(*place)
    if found is not None:
        waiting.discard(place, *found)
    return found


def served(waiting: Waiting, slots: int) -> str:
    """Tasks in the order in which so many slots serve them: `aaab`."""
    return "".join(found[0] for found in (serve(waiting, INIT) for _ in range(slots)) if found is not None)


def filled(**tasks: int) -> Waiting:
    """One user's tasks, by name, with so many sessions each."""
    waiting = Waiting()
    for name, samples in tasks.items():
        for index in range(samples):
            waiting.add(INIT, name, index)
    return waiting


def is_empty(waiting: Waiting) -> bool:
    return not waiting.known() and not waiting.queues() and not waiting.pools_staged()


# --- turns ---------------------------------------------------------------------------------------------------------------------


def test_siblings_start_together_and_a_large_task_does_not_block_the_next() -> None:
    assert served(filled(a=40, b=4, c=16), 99) == "a" * 16 + "bbbb" + "c" * 16 + "a" * 24


def test_a_session_that_comes_back_is_near_the_front_of_its_task() -> None:
    waiting = filled(a=40, b=40)
    assert [serve(waiting, INIT) for _ in range(3)] == [("a", 0), ("a", 1), ("a", 2)]
    waiting.add(INIT, "a", 1, again=True)
    assert serve(waiting, INIT) == ("a", 1)


def test_a_task_that_has_begun_goes_before_those_that_have_not() -> None:
    waiting = filled(a=2, b=2, c=2)
    served(waiting, 4)
    waiting.add(INIT, "a", 0, again=True)
    assert served(waiting, 9) == "acc"


def test_a_turn_goes_on_where_its_task_ran_out_of_sessions_for_a_moment() -> None:
    waiting = filled(a=2, b=20)
    served(waiting, 2)
    waiting.add(INIT, "a", 2)
    waiting.add(INIT, "a", 3)
    assert served(waiting, 4) == "aabb"


def test_one_that_comes_back_interrupts_no_turn() -> None:
    waiting = filled(a=20, b=2)
    served(waiting, 3)
    waiting.add(INIT, "z", 0, again=True)
    assert served(waiting, 16) == "a" * 13 + "zbb"


def test_a_higher_priority_that_has_come_meanwhile_goes_first_and_a_lower_one_never() -> None:
    waiting = Waiting()
    urgent, usual = Place(Stage.RUN, "p", 100, "ann"), Place(Stage.RUN, "p", 0, "bob")
    waiting.add(usual, "u", 0)
    assert waiting.next(*urgent) is None
    waiting.add(urgent, "v", 0)
    assert waiting.next(*usual) == ("v", 0)


def test_another_user_of_the_same_priority_takes_a_slot_whose_user_has_gone() -> None:
    waiting = Waiting()
    waiting.add(INIT._replace(user="ann"), "a", 7)
    assert waiting.next(*INIT._replace(user="bob")) == ("a", 7)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_each_round_serves_every_task_a_turn(sizes: list[int]) -> None:
    """The bound of deficit round robin: between any two of its sessions that wait, a task waits a turn of each other at most."""
    waiting = filled(**{f"t{n}": size for n, size in enumerate(sizes)})
    done: Counter[str] = Counter()
    for _ in range(sum(sizes)):
        found = serve(waiting, INIT)
        assert found is not None
        done[found[0]] += 1
        for n, size in enumerate(sizes):
            for m, other in enumerate(sizes):
                if done[f"t{n}"] < size and done[f"t{m}"] < other:
                    assert abs(done[f"t{n}"] - done[f"t{m}"]) <= TURN
    assert is_empty(waiting)


# --- nothing is lost -----------------------------------------------------------------------------------------------------------

sessions = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 70))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), priorities, users, sessions, st.booleans()),
        st.tuples(st.just("cancel"), priorities, users, sessions, st.booleans()),
        st.tuples(st.just("serve"), priorities, users, sessions, st.booleans()),
    ),
    max_size=200,
)


@given(steps)
def test_no_session_is_lost_or_served_twice_and_none_before_a_higher_priority(
    given_steps: list[tuple[str, int, str, tuple[str, int], bool]],
) -> None:
    """Against a plain set of who waits. A task has one priority and one user, which its name tells here."""
    waiting = Waiting()
    model: dict[tuple[str, int], Place] = {}
    for what, priority, user, (task, index), again in given_steps:
        place = Place(Stage.RUN, "p", priority, user)
        name = f"{task}-{priority}-{user}"
        match what:
            case "add" if (name, index) not in model:
                waiting.add(place, name, index, again=again)
                model[name, index] = place
            case "cancel":
                waiting.discard(place, name, index)
                model.pop((name, index), None)
            case "serve":
                found = waiting.next(*place)
                highest = max((p.priority for p in model.values()), default=-1)
                if highest < priority:
                    assert found is None
                    continue
                assert found is not None
                assert model[found].priority == highest
                if any(p == place._replace(priority=highest) for p in model.values()):
                    assert model[found].user == user
                waiting.discard(model.pop(found), *found)
        assert waiting.sessions(Stage.RUN, "p") == Counter(p.priority for p in model.values())
        asked = {
            (level, who): tasks.sessions
            for level in waiting.sessions(Stage.RUN, "p")
            for who, tasks in waiting.users(Stage.RUN, "p", level).items()
        }
        assert asked == Counter((p.priority, p.user) for p in model.values())
    for session, place in model.items():
        waiting.discard(place, *session)
    assert is_empty(waiting)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), priorities, users), max_size=60))
def test_what_is_in_hand_or_staged_is_counted_once(changes: list[tuple[bool, int, int, str]]) -> None:
    waiting = Waiting()
    model: dict[str, Place] = {}
    for is_taken, number, priority, user in changes:
        session_id, place = f"t.{number}", Place(Stage.INIT, "p", priority, user)
        if is_taken:
            waiting.take(place, session_id)
            waiting.stage("p", priority, session_id)
            model[session_id] = place
        else:
            waiting.let_go(session_id)
            waiting.unstage("p", session_id)
            model.pop(session_id, None)
        assert waiting.in_hand(Stage.INIT, "p") == Counter(p.user for p in model.values())
        assert waiting.held(Stage.INIT, "p") == Counter(p.priority for p in model.values()) == waiting.staged("p")
        assert set(waiting.staged_sessions()) == set(model)
    for session_id in model:
        waiting.let_go(session_id)
        waiting.unstage("p", session_id)
    assert is_empty(waiting)
