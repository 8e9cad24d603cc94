"""Which trained tokens can be scored again, and the reason for each that can't."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.verification.agreement import LARGEST, Agreement
from polar.verification.plan import Piece, Plan, Served, Unscored, Weights, plans
from polar.verification.report import Report, compared, unscored
from topics.types.completion import PolicySpan, Sampling
from topics.types.session import Status
from topics.types.task import TRAINING_DEFAULTS
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import Call, ExpandedTrace, Node, Trace, Trajectory, expand

LIMIT = 1e-3
SERVED = {"default": Served("m", Weights())}
NEUTRAL = Sampling(**TRAINING_DEFAULTS.model_dump(exclude_none=True))
"""Every setting is known, and none changes the distribution. Whether a grammar constrained the call is unknown."""
SAMPLED = 4
"""Tokens that each call samples, after two tokens of prompt."""


def sampling(**fields: Any) -> Sampling:
    return msgspec.structs.replace(NEUTRAL, **fields)


def call(**fields: Any) -> Call:
    """A call that can be scored, unless `fields` say otherwise."""
    defaults: dict[str, Any] = {
        "model_served": "m",
        "engine": "default",
        "logprobs_mode": "processed",
        "sampled_tokens": SAMPLED,
        "sampling": NEUTRAL,
    }
    return Call(fields.pop("call_id", "a"), "main", "answered", "openai_chat", 0, 0, **(defaults | fields))


def expanded(*calls: Call, sampled: int = SAMPLED) -> ExpandedTrace:
    """A trace in which each call samples so many tokens after two tokens that it reads; logprobs are -0.5."""
    nodes: list[Node] = []
    for number, _ in enumerate(calls):
        nodes.append(Node(len(nodes) - 1, pack_ids([7, 8])))
        nodes.append(Node(len(nodes) - 1, pack_ids([9] * sampled), pack_logprobs([-0.5] * sampled), call=number))
    trace = Trace("t.0/a", len(nodes) - 1, [n for n, node in enumerate(nodes) if node.call is not None])
    made = Trajectory(
        "t.0", "t", 0, 1, 1, Status.COMPLETED, "prefix_merging", "shell", nodes=nodes, calls=list(calls), traces=[trace]
    )
    return expand(made, trace)


def test_what_one_version_of_known_weights_sampled_is_scored_in_one_plan() -> None:
    [plan] = plans(expanded(call(), call(call_id="b")), SERVED, 100)
    assert plan.pieces == (Piece("a", 2, 6, Sampling()), Piece("b", 8, 12, Sampling()))
    assert (plan.length, plan.alternatives, plan.unscored) == (12, 0, {})


@pytest.mark.parametrize(
    ("fields", "weights", "reason"),
    [
        ({"engine": "other"}, Weights(), Unscored.ENGINE),
        ({"model_served": "another"}, Weights(), Unscored.OTHER_MODEL),
        ({"model_served": None}, Weights(), None),
        ({"policy_version": 3}, Weights(3), None),
        ({"policy_version": 3}, Weights(4), Unscored.WEIGHTS_CHANGED),
        ({"policy_version": 3, "publication": 10}, Weights(3, 10), None),
        ({"policy_version": 3, "publication": 10}, Weights(3, 12), Unscored.WEIGHTS_CHANGED),
        ({"policy_version": 3, "publication": 10}, Weights(3), None),
        ({"policy_version": 3}, Weights(3, 12), None),
        ({"policy_version": 3}, Weights(), Unscored.WEIGHTS_UNKNOWN),
        ({}, Weights(3, 12), Unscored.WEIGHTS_UNKNOWN),
        ({"policy_version": 0}, Weights(), Unscored.WEIGHTS_UNKNOWN),
        ({"media": 1}, Weights(), Unscored.IMAGES),
        ({"sampling": Sampling(grammar=True)}, Weights(), Unscored.GRAMMAR),
        ({"sampling": Sampling(grammar=True), "logprobs_mode": "raw"}, Weights(), Unscored.GRAMMAR),
        ({"logprobs_mode": "unknown"}, Weights(), Unscored.LOGPROBS_MODE),
        ({"sampling": sampling(presence_penalty=0.5)}, Weights(), Unscored.PENALTIES),
        ({"sampling": sampling(repetition_penalty=1.1)}, Weights(), Unscored.PENALTIES),
        ({"sampling": sampling(repetition_penalty=1.1), "logprobs_mode": "raw"}, Weights(), None),
        ({"sampling": Sampling(presence_penalty=0.5)}, Weights(), Unscored.SAMPLING_UNKNOWN),
    ],
    ids=str,
)
def test_a_span_is_left_out_with_its_reason(fields: dict[str, Any], weights: Weights, reason: Unscored | None) -> None:
    [plan] = plans(expanded(call(**fields)), {"default": Served("m", weights)}, 100)
    assert plan.unscored == ({} if reason is None else {reason: SAMPLED})
    assert len(plan.pieces) == (reason is None)


@pytest.mark.parametrize("setting", TRAINING_DEFAULTS.model_dump(exclude_none=True))
def test_a_processed_logprob_needs_every_setting_that_changes_it(setting: str) -> None:
    unknown = sampling(**{setting: None})
    [plan] = plans(expanded(call(sampling=unknown)), SERVED, 100)
    assert (plan.pieces, plan.unscored) == ((), {"sampling_unknown": SAMPLED})
    [plan] = plans(expanded(call(sampling=unknown, logprobs_mode="raw")), SERVED, 100)
    assert (len(plan.pieces), plan.unscored) == (1, {})


def test_of_an_answer_that_weights_changed_in_only_the_part_of_the_served_weights_is_scored() -> None:
    spans = [PolicySpan(3, 0, 1, 10), PolicySpan(4, 1, SAMPLED, 12)]
    [plan] = plans(expanded(call(policy_version=3, policy_spans=spans)), {"default": Served("m", Weights(4, 12))}, 100)
    assert plan.pieces == (Piece("a", 3, 6, Sampling()),)
    assert plan.unscored == {Unscored.WEIGHTS_CHANGED: 1}


def test_raw_logprobs_are_plain_whatever_was_sampled_from() -> None:
    cool = sampling(temperature=0.5, top_k=3)
    trace = expanded(call(sampling=cool), call(call_id="b", sampling=cool, logprobs_mode="raw"))
    [plan] = plans(trace, SERVED, 100)
    assert [piece.sampling for piece in plan.pieces] == [cool, Sampling()]
    assert plan.alternatives == 3


def test_a_prompt_ends_at_the_last_token_that_fits_and_the_rest_is_too_long() -> None:
    trace = expanded(call(), call(call_id="b"), call(call_id="c"))
    [plan] = plans(trace, SERVED, 10)
    assert plan.pieces == (Piece("a", 2, 6, Sampling()), Piece("b", 8, 10, Sampling()))
    assert plan.unscored == {Unscored.TOO_LONG: 2 + SAMPLED}


def test_each_engine_of_a_trace_has_a_plan_of_its_own() -> None:
    trace = expanded(call(), call(call_id="b", engine="small"))
    found = plans(trace, SERVED | {"small": Served("m", Weights())}, 100)
    assert [(plan.engine, plan.pieces[0].start) for plan in found] == [("default", 2), ("small", 8)]


def test_what_needs_too_many_alternatives_is_dropped_and_counted() -> None:
    samplings = [NEUTRAL, sampling(temperature=0.5), sampling(top_k=5)]
    trace = expanded(*(call(call_id=str(n), sampling=each) for n, each in enumerate(samplings)))
    [plan] = plans(trace, SERVED, 100)
    assert plan.alternatives == -1
    assert [piece.sampling for piece in plan.within(5).pieces] == [Sampling(), sampling(top_k=5)]
    assert [piece.sampling for piece in plan.within(0).pieces] == [Sampling()]
    assert plan.within(0).unscored == {Unscored.VOCABULARY: 2 * SAMPLED}
    assert plan.refused(Unscored.FAILED).unscored == {Unscored.FAILED: 3 * SAMPLED}


@given(
    st.lists(
        st.builds(
            call,
            call_id=st.uuids().map(str),
            engine=st.sampled_from(["default", "none"]),
            logprobs_mode=st.sampled_from(["raw", "processed", "unknown"]),
            policy_version=st.none() | st.integers(0, 1),
            sampling=st.builds(sampling, temperature=st.none() | st.sampled_from([0.5, 1.0]), grammar=st.booleans()),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(2, 40),
)
def test_every_trained_token_is_scored_or_counted_once(calls: list[Call], longest: int) -> None:
    trace = expanded(*calls)
    found = plans(trace, SERVED, longest)
    scored = sum(piece.end - piece.start for plan in found for piece in plan.pieces)
    assert scored + sum(sum(plan.unscored.values()) for plan in found) == int(trace.loss_mask.sum())
    assert all(plan.length <= longest for plan in found)


def test_recorded_and_scored_logprobs_are_compared_where_they_were_scored() -> None:
    trace = expanded(call(), call(call_id="b", sampling=Sampling(grammar=True)))
    [plan] = plans(trace, SERVED, 100)
    rows = np.full((plan.length, 1), -0.5)
    rows[3], rows[4] = -0.75, -np.inf
    comparison = compared(plan, rows)
    assert comparison.scored[:SAMPLED].tolist() == [-0.5, -0.75, -np.inf, -0.5]
    assert np.isnan(comparison.scored[SAMPLED:]).all()
    assert comparison.deltas.tolist() == [0.0, 0.25, np.inf, 0.0]
    assert Agreement.of(comparison.deltas) == Agreement(4, 0.25 / 3, 0.25, LARGEST, LARGEST)
    assert {call_id: deltas.tolist() for call_id, deltas in comparison.calls.items()} == {"a": [0.0, 0.25, np.inf, 0.0]}


@pytest.mark.parametrize(("tokens", "p99"), [(1, 5.0), (99, 5.0), (100, 0.0), (199, 0.0), (200, 0.0)])
def test_one_bad_token_of_a_hundred_is_not_the_p99(tokens: int, p99: float) -> None:
    agreement = Agreement.of(np.array([5.0] + [0.0] * (tokens - 1)))
    assert (agreement.p99, agreement.largest) == (p99, 5.0)


@given(st.lists(st.lists(st.sampled_from([0.0, 5.0]), min_size=1, max_size=300), min_size=1, max_size=4))
def test_where_each_part_is_within_the_limit_the_whole_is(parts: list[list[float]]) -> None:
    if all(Agreement.of(np.array(part)).p99 == 0.0 for part in parts):
        assert Agreement.of(np.concatenate(parts)).p99 == 0.0


@pytest.mark.parametrize(
    ("lost", "tokens", "mean"),
    [(0, 4, 0.5), (1, 4, 0.5), (2, 4, (1.0 + 2 * LARGEST) / 4), (1, 1, 0.0), (2, 200, 0.5), (3, 200, LARGEST)],
)
def test_few_tokens_beyond_the_edge_of_a_truncation_are_no_part_of_the_mean(
    lost: int, tokens: int, mean: float
) -> None:
    deltas = np.array([np.inf] * lost + [0.5] * (tokens - lost))
    found = Agreement.of(deltas).mean
    assert found == pytest.approx(mean) if mean != LARGEST else found > 100


def test_a_report_adds_up_traces_and_names_those_over_the_limit() -> None:
    report = Report(0.1)
    engine = report.of_engine("default")
    [plan] = plans(expanded(call()), SERVED, 100)
    engine.add(unscored(plan.refused(Unscored.FAILED)), 0.1)
    assert (report.is_faithful, engine.agreement) == (False, None), "nothing was scored"
    for number, difference in enumerate([0.0] * 120 + [0.15]):
        rows = np.full((plan.length, 1), -0.5)
        rows[3] -= difference
        engine.add(compared(named(plan, number), rows), 0.1)
    assert [trace.trace_id for trace in engine.over] == ["t.120/a"]
    assert engine.worst == engine.over[0]
    assert engine.unscored == {Unscored.FAILED: SAMPLED}
    # 1 of 484 tokens is within what 99 of 100 tokens allow, and its call is within the limit on average.
    assert engine.agreement is not None
    assert engine.agreement.p99 == 0.0
    assert engine.agreement.largest == pytest.approx(0.15)
    assert (engine.mismatches(0.1), report.is_faithful) == (0, True)


def test_one_answer_after_another_prompt_is_found_in_a_long_session_among_many() -> None:
    report = Report(0.1)
    engine = report.of_engine("default")
    [plan] = plans(expanded(*(call(call_id=f"c{n}") for n in range(30)), sampled=60), SERVED, 9999)
    for number in range(20):
        rows = np.full((plan.length, 1), -0.5)
        if number == 7:
            rows[-15:] -= 5.0
        engine.add(compared(named(plan, number), rows), 0.1)
    [found] = engine.over
    assert (found.trace_id, found.p99, engine.worst) == ("t.7/a", 0.0, found)
    assert [(each.call_id, each.tokens, each.mean, each.p99) for each in found.calls] == [("c29", 60, 1.25, 5.0)]
    assert engine.agreement is not None
    assert engine.agreement.p99 == 0.0
    assert (engine.mismatches(0.1), report.is_faithful) == (1, False)


def test_a_call_with_few_but_huge_differences_is_found_by_its_mean() -> None:
    report = Report(0.1)
    [plan] = plans(expanded(call(), sampled=200), SERVED, 9999)
    rows = np.full((plan.length, 1), -0.5)
    rows[-2:] -= 50.0
    report.of_engine("default").add(compared(plan, rows), 0.1)
    [found] = report.of_engine("default").over
    assert (found.p99, found.calls[0].mean, report.is_faithful) == (0.0, 0.5, False)


@pytest.mark.parametrize(
    ("reasons", "outdated"),
    [
        ([], False),
        ([Unscored.WEIGHTS_CHANGED, Unscored.WEIGHTS_UNKNOWN], True),
        ([Unscored.WEIGHTS_CHANGED, Unscored.OTHER_MODEL], False),
    ],
)
def test_a_report_is_outdated_if_other_weights_alone_left_nothing_to_score(
    reasons: list[Unscored], outdated: bool
) -> None:
    report = Report(LIMIT)
    [plan] = plans(expanded(call()), SERVED, 100)
    for reason in reasons:
        report.of_engine("default").add(unscored(plan.refused(reason)), LIMIT)
    assert (report.is_outdated, report.is_faithful) == (outdated, False)
    report.of_engine("small").add(compared(plan, np.full((plan.length, 1), -0.5)), LIMIT)
    assert (report.is_outdated, report.is_faithful) == (False, True)


def named(plan: Plan, number: int) -> Plan:
    """The same plan for another trace."""
    trace = msgspec.structs.replace(plan.trace.trace, trace_id=f"t.{number}/a")
    return replace(plan, trace=msgspec.structs.replace(plan.trace, trace=trace))
