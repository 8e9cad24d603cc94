"""The table of causes: each cause is reachable, and planted facts give exactly it, in full sentences with a way out that exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.health import Flag
from consumers.runtimes import base
from polar.cli.app import PLACES
from polar.diagnosis.causes import Cause
from polar.diagnosis.facts import Calls, Facts, System
from polar.diagnosis.table import TABLE, diagnose
from tests.polar.diagnosis.planted import FREE, OPENED, PLANTED, TASK, WELL, completed, failed, session
from topics.types.completion import CallError, CallOutcome, Completion, MessageDelta, Sampling, TokenDelta
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, SessionState, Status

ROOT = Path(__file__).parents[3]


def test_each_cause_stands_in_the_table_once_and_is_planted() -> None:
    assert Counter(entry.cause for entry in TABLE) == dict.fromkeys(Cause, 1)
    assert PLANTED.keys() == set(Cause)


@pytest.mark.parametrize("cause", Cause)
def test_planted_facts_have_exactly_this_cause(cause: Cause) -> None:
    assert [finding.cause for finding in diagnose(PLANTED[cause])] == [cause]


@pytest.mark.parametrize("cause", Cause)
def test_it_is_said_in_sentences_with_a_way_out(cause: Cause) -> None:
    (finding,) = diagnose(PLANTED[cause])
    assert finding.sentence.endswith(".")
    assert finding.way_out.endswith((".", "`", "?"))
    assert not re.search(r"[{}]|None|\.\.|  ", finding.sentence + finding.way_out)


def test_ways_out_name_commands_that_exist() -> None:
    named = {name for entry in TABLE for name in re.findall(r"`polar ([a-z-]+)", entry.way_out)}
    assert named <= PLACES.keys()


def raised_codes() -> set[str]:
    """The codes of all `SandboxError`s that the code of workers raises."""
    found = set()
    for path in (ROOT / "consumers").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "SandboxError":
                match node.args[0]:
                    case ast.Constant(value=str(code)):
                        found.add(code)
                    case ast.Name(id=name):
                        found.add(getattr(base, name, ""))
    return found - {""}


def test_every_fault_of_a_sandbox_has_a_cause_of_its_own() -> None:
    codes = raised_codes()
    assert {"not_made", "host_disk_full", "prepare_failed"} <= codes
    unnamed = [code for code in sorted(codes) if diagnose(failed(f"infra/{code}"))[0].cause is Cause.FAILED]
    assert unnamed == []


rows = st.builds(
    SessionState,
    st.just("t.0"),
    st.just("t"),
    st.just(0),
    st.sampled_from(Phase),
    st.just(0),
    attempt=st.integers(1, 3),
    status=st.sampled_from(Status),
    error=st.none()
    | st.builds(
        SessionError,
        st.sampled_from(["init", "run", "evaluate", "build", "queue"]),
        st.sampled_from(Kind),
        st.sampled_from(["lost", "timeout", "unheard_of"]),
        st.just("{message} of anybody"),
    ),
    reward=st.none() | st.floats(0, 1),
    calls=st.integers(0, 2),
    trainable_tokens=st.integers(0, 2),
)
systems = st.builds(
    System,
    processes=st.dictionaries(st.sampled_from(list(WELL.processes)), st.integers(0, 2)),
    slots=st.sampled_from([{}, FREE]),
    is_paused=st.booleans(),
    is_draining=st.booleans(),
    proxy=st.none() | st.just("starting"),
    obstacles=st.sampled_from([[], ["host: it waits"]]),
)


@given(systems, st.sampled_from([TASK, OPENED]), rows, st.none() | st.sets(st.sampled_from(Flag)))
def test_every_session_has_a_cause(system: System, task: object, row: SessionState, flags: set[Flag] | None) -> None:
    assert isinstance(task, type(TASK))
    if row.phase is Phase.UNOPENED:
        task = OPENED
    found = diagnose(Facts("t.0", system, task, row, flags=None if flags is None else sorted(flags)))
    assert found
    assert all(finding.sentence and finding.way_out for finding in found)


def test_what_stops_the_whole_system_comes_first() -> None:
    system = replace(WELL, processes={}, slots={}, is_draining=True)
    found = [finding.cause for finding in diagnose(session(Phase.QUEUED, system=system))]
    assert found == [Cause.NO_COORDINATOR, Cause.NO_WORKERS, Cause.DRAINING]


def test_a_queued_session_needs_run_workers_too() -> None:
    """A sandbox is prepared only for a run slot."""
    init_only = {key: slots for key, slots in FREE.items() if key[0].value == "init"}
    (finding,) = diagnose(session(Phase.QUEUED, system=replace(WELL, slots=init_only)))
    assert finding.cause is Cause.NO_WORKERS
    assert "`polar worker run --pool default`" in finding.way_out


def test_an_evaluation_s_error_counts_where_the_run_has_none() -> None:
    error = SessionError("evaluate", Kind.EVALUATION, "evaluator_raised", "KeyError: 'x'.")
    facts = session(Phase.ENDED, status=Status.TIMED_OUT, evaluation_error=error)
    (finding,) = diagnose(facts)
    assert finding.cause is Cause.EVALUATOR_RAISED
    assert finding.sentence == "Its evaluator raised an exception: KeyError: 'x'."


def test_a_completed_session_has_all_its_flags() -> None:
    found = diagnose(completed(Flag.FORKED, Flag.ANSWER_CUT, tokens=0))
    assert {finding.cause for finding in found} == {Cause.NOTHING_TRAINED, Cause.FORKED, Cause.ANSWER_CUT}


def test_a_reward_has_its_evaluator_s_reason() -> None:
    facts = completed(reward=0.0, reward_reason="the test command was stopped. It didn't end within timeout_s = 1 s.")
    (finding,) = diagnose(facts)
    assert finding.sentence.startswith(
        "It completed with reward 0 (the test command was stopped. It didn't end within timeout_s = 1 s)."
    )


def test_text_of_an_agent_is_no_template() -> None:
    (finding,) = diagnose(failed("agent/exit_code", "{name} {0} {error.x}"))
    assert finding.sentence == "The harness failed: {name} {0} {error.x}."


def call(
    number: int, *, mode: str = "processed", sampling: Sampling | None = None, version: int | None = None
) -> Completion:
    answered = CallOutcome.ANSWERED
    made = Completion(
        f"c{number}", "t.0", 1, "k", answered, "openai_chat", "e", 0, 1, TokenDelta(b""), MessageDelta(b"[]")
    )
    return msgspec.structs.replace(
        made, logprobs_mode=mode, sampling=sampling or Sampling(temperature=1.0), policy_version=version
    )


def test_raw_logprobs_matter_only_if_the_distribution_was_changed() -> None:
    hot, plain = Sampling(temperature=0.5), Sampling(temperature=1.0)
    calls = [call(0, mode="raw", sampling=plain), call(1, mode="raw", sampling=hot), call(2, sampling=hot)]
    assert Calls.of(calls, 0, "").raw == 1


def test_a_call_that_its_harness_abandoned_is_no_failure_of_the_engine() -> None:
    left = msgspec.structs.replace(call(0), outcome=CallOutcome.ABANDONED, error=CallError("hung_up", "it left"))
    failed = msgspec.structs.replace(call(1), outcome=CallOutcome.FAILED, error=CallError("timeout", "60 s"))
    assert Calls.of([left], 0, "").error is None
    assert Calls.of([left, failed], 0, "").error == CallError("timeout", "60 s")
    assert Calls.of([failed, call(2)], 0, "").error is None


def test_the_newest_version_of_a_session_counts() -> None:
    calls = [call(0, version=3), call(1, version=5), call(2)]
    assert Calls.of(calls, 0, "") == Calls(3, policy_version=5)
