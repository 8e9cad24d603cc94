"""Which sessions are open: a fold over the log that may be taken up again from the oldest of them."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from consumers.builders.base import BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.building.open_sessions import OpenSession, OpenSessions
from consumers.building.outcome import encoded, failed, outcome
from consumers.building.running import AT_ONCE, Builds, off_loop
from topics import trajectories
from topics.completions import Build, CallRecord, CloseGroup, Disowned, Emitted, Open
from topics.contract.codec import encode
from topics.environment.settings import Settings
from topics.types.completion import CallOutcome, Completion, MessageDelta, Sampling, TokenDelta
from topics.types.errors import Kind, SessionError
from topics.types.session import Status
from topics.types.trajectory import Stats, Trajectory


def call(session_id: str, claim_id: str, call_id: str) -> Completion:
    prompt, messages = TokenDelta(b""), MessageDelta(b"[]")
    return Completion(call_id, session_id, 1, claim_id, CallOutcome.ANSWERED, "d", "e", 0, 0, prompt, messages)


def build(session_id: str, claim_id: str, builder: str = "per_request") -> Build:
    return Build(session_id, "t", 0, 1, 1, claim_id, Status.COMPLETED, builder, b"{}", "shell")


def folded(log: list[CallRecord], start: int = 0, end: int | None = None, memory_limit: int = 10**9) -> OpenSessions:
    sessions = OpenSessions(memory_limit)
    sessions.position = start
    for offset, record in enumerate(log[:end]):
        if offset >= start:
            sessions.take(record, offset, 100)
    return sessions


def seen(sessions: OpenSessions) -> list[tuple[str, str, list[str], set[str], int]]:
    return [
        (s.opened.session_id, s.opened.claim_id, [c.call_id for c in s.calls], set(s.records.disowned), s.late)
        for s in sessions.due()
    ]


def test_a_session_holds_the_calls_between_its_newest_open_and_its_build() -> None:
    log: list[CallRecord] = [
        call("t.0", "a", "before"),
        Open("t.0", 1, "a"),
        call("t.0", "a", "lost"),
        Open("t.0", 2, "b"),
        call("t.0", "a", "zombie"),
        call("t.0", "b", "one"),
        call("t.0", "b", "two"),
        Disowned("two", "t.0", "b", "closed"),
        build("t.0", "b"),
        call("t.0", "b", "late"),
    ]
    assert seen(folded(log)) == [("t.0", "b", ["one", "two"], {"two"}, 1)]


def test_what_is_emitted_is_not_due_again_and_neither_is_a_repeated_build() -> None:
    log: list[CallRecord] = [Open("t.0", 1, "a"), build("t.0", "a"), Emitted("t", "t.0"), build("t.0", "a")]
    log += [CloseGroup("t", 1, [None], [Status.COMPLETED]), Emitted("t")]
    sessions = folded(log)
    assert sessions.due() == []
    assert sessions.due_groups() == []
    assert sessions.oldest() == len(log)


def test_a_build_whose_open_left_the_log_is_a_gap_and_said_once() -> None:
    sessions = OpenSessions(10**9)
    sessions.has_gap = True
    sessions.take(build("t.0", "a"), 5, 10)
    assert [s.is_gap for s in sessions.due()] == [True]
    sessions.emitted("t.0", "t")
    sessions.take(build("t.0", "a"), 6, 10)
    assert sessions.due() == []


def test_after_a_gap_a_bounded_number_of_emitted_sessions_is_remembered_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("consumers.building.open_sessions.EMITTED", 100)
    sessions = OpenSessions(10**9)
    sessions.has_gap = True
    for number in range(300):
        sessions.take(Open(f"t{number}.0", 1, "a"), 2 * number, 10)
        sessions.take(Emitted(f"t{number}", f"t{number}.0"), 2 * number + 1, 10)
    for number in range(200, 300):
        sessions.take(build(f"t{number}.0", "a"), 1000 + number, 10)
    assert sessions.due() == []
    sessions.take(build("t0.0", "a"), 2000, 10)
    assert [session.opened.session_id for session in sessions.due()] == ["t0.0"], "forgotten, so nothing grows"


def test_beyond_the_memory_budget_only_offsets_are_kept() -> None:
    log: list[CallRecord] = [Open("t.0", 1, "a"), call("t.0", "a", "1"), call("t.0", "a", "2"), build("t.0", "a")]
    (session,) = folded(log, memory_limit=150).due()
    assert (session.is_spilled, session.calls, session.offset) == (True, [], 0)


def test_calls_outside_of_their_session_take_no_memory_from_others() -> None:
    late, strange = [[call("t.0", claim, f"{claim}{n}") for n in range(3)] for claim in ("a", "zombie")]
    unknown = [call("t.9", "a", f"unknown{n}") for n in range(3)]
    log: list[CallRecord] = [Open("t.0", 1, "a"), build("t.0", "a"), *late, *strange, *unknown]
    log += [Open("t.1", 1, "b"), call("t.1", "b", "1"), build("t.1", "b")]
    assert [session.is_spilled for session in folded(log, memory_limit=150).due()] == [False, False]


names = st.sampled_from(["t.0", "t.1", "u.0"])
claims = st.sampled_from(["a", "b"])
records: st.SearchStrategy[CallRecord] = st.one_of(
    st.builds(lambda s, c: Open(s, 1, c), names, claims),
    st.builds(call, names, claims, st.uuids().map(str)),
    st.builds(lambda s, c: Disowned("x", s, c, "closed"), names, claims),
    st.builds(build, names, claims),
    st.builds(lambda s: Emitted(s.partition(".")[0], s), names),
    st.just(CloseGroup("t", 1, [None], [Status.COMPLETED])),
    st.just(Emitted("t")),
)


@given(st.lists(records, max_size=40), st.data())
def test_taken_up_from_its_oldest_open_session_the_fold_is_the_same(log: list[CallRecord], data: st.DataObject) -> None:
    crash = data.draw(st.integers(0, len(log)))
    resumed = folded(log, start=folded(log, end=crash).oldest())
    whole = folded(log)
    assert seen(resumed) == seen(whole)
    assert resumed.due_groups() == whole.due_groups()


async def test_a_builder_that_raises_gives_its_error() -> None:
    source = BuiltFrom(build("t.0", "a", builder="tests:Nothing"), [])
    with pytest.raises(ValueError, match="can't be imported"):
        await off_loop(source)


def titled(reward: Any) -> Trajectory:
    """A trajectory under names that aren't the session's."""
    return Trajectory("u.7", "u", 7, 9, 3, Status.COMPLETED, "another", "shell", reward)


BUILDS: dict[str, Callable[[], Any]] = {
    "other names": lambda: titled(1.0),
    "no trajectory": dict,
    "nothing": lambda: None,
    "StopIteration": lambda: next(iter([])),
    "a number that msgpack doesn't know": lambda: titled(np.float32(1)),
    "a reward that no reader accepts": lambda: titled("1.0"),
    "the end of its process": lambda: sys.exit("enough"),
}


class Odd:
    """A builder that returns or raises what its settings say."""

    def __init__(self, what: str) -> None:
        self._build = BUILDS[what]

    def build(self, session: BuiltFrom) -> Any:
        return self._build()


@pytest.mark.parametrize("what", BUILDS)
async def test_a_session_has_a_trajectory_of_its_own_whatever_its_builder_does(what: str) -> None:
    by = f"{__name__}:Odd"
    record = replace(build("t.0", "a", by), builder_config=json.dumps({"what": what}).encode(), run="night")
    (session,) = folded([Open("t.0", 1, "a"), record]).due()
    made = await outcome(session, Settings(), 0)
    assert (made.session_id, made.task_id, made.sample_index, made.num_samples, made.attempt) == ("t.0", "t", 0, 1, 1)
    assert (made.builder, made.run) == (by, "night")
    assert (made.error and made.error.code) == (None if what == "other names" else "builder")


NOT_ANSWERED = {"none": [], "failed": [CallOutcome.FAILED]}


@pytest.mark.parametrize("outcomes", NOT_ANSWERED.values(), ids=NOT_ANSWERED)
@pytest.mark.parametrize(("needs_call", "reward"), [(True, None), (False, 1.0)], ids=["closed", "forced"])
async def test_the_reward_of_a_close_needs_an_answered_call_unless_it_is_forced(
    outcomes: list[CallOutcome], needs_call: bool, reward: float | None
) -> None:
    calls = [replace(call("t.0", "a", "one"), outcome=each) for each in outcomes]
    record = replace(build("t.0", "a"), reward=1.0, reward_needs_call=needs_call)
    (session,) = folded([Open("t.0", 1, "a"), *calls, record]).due()
    made = await outcome(session, Settings(), 0)
    assert (made.status, made.reward, made.stats.calls) == (Status.COMPLETED, reward, len(calls))
    assert ("no call was answered" in (made.reward_reason or "")) is needs_call


async def test_an_answer_that_nobody_received_keeps_no_reward() -> None:
    record = replace(build("t.0", "a"), reward=1.0, reward_needs_call=True)
    unreceived = Disowned("one", "t.0", "a", "unacknowledged")
    (session,) = folded([Open("t.0", 1, "a"), call("t.0", "a", "one"), unreceived, record]).due()
    made = await outcome(session, Settings(), 0)
    assert (made.status, made.reward) == (Status.COMPLETED, None)


async def test_the_reward_of_a_close_stays_with_an_answered_call() -> None:
    record = replace(build("t.0", "a"), reward=1.0, reward_needs_call=True)
    (session,) = folded([Open("t.0", 1, "a"), call("t.0", "a", "one"), record]).due()
    made = await outcome(session, Settings(), 0)
    assert (made.reward, made.reward_reason) == (1.0, None)


class Hung:
    """A builder whose builds never end."""

    released = threading.Event()

    def build(self, session: BuiltFrom) -> Trajectory:
        self.released.wait()
        return titled(1.0)


async def test_a_build_that_hangs_fails_alone_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.building.outcome.BUILD_S", 0.05)
    (session,) = folded([Open("t.0", 1, "a"), build("t.0", "a", f"{__name__}:Hung")]).due()
    try:
        made = await outcome(session, Settings(), 0)
    finally:
        Hung.released.set()
    assert made.error is not None
    assert (made.status, made.error.kind, made.error.code) == (Status.FAILED, Kind.INFRA, "builder_timeout")


async def test_a_session_whose_first_call_has_left_the_log_is_not_built_from_the_others() -> None:
    sessions = OpenSessions(10**9)
    sessions.has_gap = True
    sessions.take(call("t.0", "a", "second"), 5, 100)
    sessions.take(build("t.0", "a"), 6, 100)
    made = await outcome(sessions.due()[0], Settings(), 0)
    assert made.error is not None
    assert (made.status, made.error.kind, made.error.code) == (Status.FAILED, Kind.INFRA, "log_gap")


def built(session: OpenSession) -> Trajectory:
    assert session.build is not None
    return failed(session.build, session.opened.claim_id, "", 0)


async def at_once(session: OpenSession) -> Trajectory:
    return built(session)


@pytest.mark.parametrize(
    "later", [[Open("t.0", 2, "b")], [Emitted("t", "t.0")]], ids=["opened anew", "emitted by another"]
)
async def test_a_build_whose_session_is_no_longer_due_is_not_waited_for(later: list[CallRecord]) -> None:
    log: list[CallRecord] = [Open("t.0", 1, "a"), build("t.0", "a")]
    builds = Builds(at_once)
    builds.keep(folded(log).due())
    await asyncio.wait(builds.tasks)
    builds.keep(folded([*log, *later]).due())
    assert (builds.tasks, builds.finished()) == ([], [])


async def test_a_build_is_never_taken_for_that_of_the_session_opened_anew() -> None:
    sessions = folded([Open("t.0", 1, "a"), build("t.0", "a")])
    builds = Builds(at_once)
    builds.keep(sessions.due())
    await asyncio.wait(builds.tasks)
    sessions.take(Open("t.0", 2, "b"), 2, 100)
    sessions.take(build("t.0", "b"), 3, 100)
    builds.keep(sessions.due())
    await asyncio.wait(builds.tasks)
    ((session, trajectory),) = builds.finished()
    assert (session.opened.claim_id, trajectory.error) == ("b", built(session).error)


async def test_no_more_builds_run_than_may() -> None:
    started: list[str] = []

    async def for_ever(session: OpenSession) -> Trajectory:
        started.append(session.opened.session_id)
        await asyncio.Event().wait()
        return built(session)

    log: list[CallRecord] = []
    for index in range(AT_ONCE + 3):
        log += [Open(f"t.{index}", 1, "a"), build(f"t.{index}", "a")]
    due = folded(log).due()
    builds = Builds(for_ever)
    builds.keep(due)
    await asyncio.sleep(0)
    builds.keep(due)
    await asyncio.sleep(0)
    assert started == [f"t.{index}" for index in range(AT_ONCE)]
    builds.cancel()
    await asyncio.wait(builds.tasks)


@pytest.mark.parametrize(
    ("requested", "status"),
    [(Status.COMPLETED, Status.FAILED), (Status.FAILED, Status.FAILED), (Status.TIMED_OUT, Status.TIMED_OUT)],
)
def test_an_agent_that_fills_its_trajectory_keeps_its_reward(requested: Status, status: Status) -> None:
    """By stop strings of refused calls, two of which fit into a record."""
    stop = ["x" * (trajectories.TOPIC.max_bytes // 2 - 2000)]
    calls = [
        replace(call("t.0", "a", f"c{index}"), outcome=CallOutcome.FAILED, sampling=Sampling(stop=stop))
        for index in range(3)
    ]
    judged = replace(build("t.0", "a"), status=requested, reward=0.0, reward_reason="3 of 3 tests failed")

    def written(number: int) -> tuple[Trajectory, bytes]:
        built = PerRequest().build(BuiltFrom(judged, calls[:number], frozenset()))
        return encoded(replace(built, rebuilt_with=b"{}"), judged, trajectories.TOPIC)

    whole, _ = written(2)
    assert (whole.status, whole.reward, whole.error, len(whole.calls)) == (requested, 0.0, None, 2)
    trajectory, value = written(3)
    assert (trajectory.status, trajectory.reward, trajectory.reward_reason) == (status, 0.0, judged.reward_reason)
    assert isinstance(trajectory.error, SessionError)
    assert (trajectory.error.kind, trajectory.error.code) == (Kind.AGENT, "too_large")
    assert (trajectory.calls, trajectory.traces, trajectory.stats) == ([], [], Stats(calls=3))
    assert trajectory.rebuilt_with == b"{}"
    assert value == encode(trajectory)
