"""Each health flag, provoked in data of the real builder and coordinator, and absent where nothing is wrong."""

from __future__ import annotations

import pytest

from analytics import health
from analytics.health import MEANINGS, Flag
from tests.analytics.flagged import FLAGGED_CALLS, GOOD, IMPLIED, PROVOKED, good, good_calls
from tests.consumers.coordinator.bench import Bench, submitted
from tests.consumers.token_tree.transcripts import Log
from topics.events import Evaluated, TrajectoryEmitted
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, SessionState, Status


@pytest.mark.parametrize("flag", Flag)
def test_each_flag_is_provoked_and_names_its_calls(flag: Flag) -> None:
    found = health.of_trajectory(PROVOKED[flag]())
    assert set(found) == {flag} | IMPLIED.get(flag, set())
    assert found[flag] == FLAGGED_CALLS.get(flag, [])


def test_a_session_without_faults_has_no_flag_and_side_calls_give_none() -> None:
    assert health.of_trajectory(good()) == {}
    log = good_calls()
    log.call("c3", "title please", "a very long title of many words", kind="title", finish_reason="length")
    assert health.of_trajectory(log.build()) == {}


def test_a_call_whose_base_is_missing_is_flagged_by_its_place() -> None:
    log = Log()
    log.call("c1", "fix it", "look around", **GOOD)
    log.call("c2", "fix it look around result", "done", **GOOD)
    log.calls.pop(0)
    found = health.of_trajectory(log.build())
    assert found[Flag.CALL_MISSING] == ["c2"]


def test_late_calls_that_are_known_are_named() -> None:
    assert health.of_trajectory(good(), ["c9"]) == {Flag.AFTER_CLOSE: ["c9"]}


def test_a_row_shows_a_failed_evaluation_and_a_missing_reward_before_its_trajectory_is_read() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    bench.give(
        Evaluated("f", "t.0", 1, "e1", error=SessionError("evaluate", Kind.EVALUATION, "evaluator_raised", "no"))
    )
    assert health.of_row(bench.session()) == [Flag.EVALUATOR_FAILED]
    bench.give(TrajectoryEmitted("f", "t.0", 1, status=Status.FAILED))
    assert health.of_row(bench.session()) == [Flag.REWARD_NULL, Flag.EVALUATOR_FAILED]


def test_a_running_session_has_the_flags_of_its_calls_so_far() -> None:
    row = SessionState("t.0", "t", 0, Phase.RUNNING, since=0)
    for flag in (Flag.ANSWER_CUT, Flag.TRUNCATED_SAMPLING, Flag.ABANDONED, Flag.VERSION_UNKNOWN):
        calls = PROVOKED[flag]().calls
        assert health.of_session(row, None, calls=calls) == {flag: FLAGGED_CALLS[flag]}


def test_every_flag_has_a_sentence() -> None:
    assert set(MEANINGS) == set(Flag)
    assert all(meaning[0].isupper() and meaning.endswith(".") for meaning in MEANINGS.values())
