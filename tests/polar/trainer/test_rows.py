"""Rows: each trained token once, a session weighed once however many traces it has, and only what has a reward."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.advantages import advantages
from polar.trainer.groups import Group
from polar.trainer.rows import Row, grpo
from tests.polar.trainer.trees import built, groups, publication_of, trained_tokens, trees, versions_of
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import ROOT, Call, Node, Trajectory

OPTIONS = st.fixed_dictionaries({"by_deviation": st.booleans(), "leave_one_out": st.booleans()})


def of_session(rows: list[Row], session_id: str) -> list[Row]:
    return [row for row in rows if row.session_id == session_id]


@given(groups(), OPTIONS)
def test_each_trained_token_of_a_session_with_a_reward_is_in_one_row(group: Group, options: dict[str, Any]) -> None:
    rows = grpo(group, **options)
    for one in group.trajectories:
        found = [row.token_ids[row.loss_mask == 1].tolist() for row in of_session(rows, one.session_id)]
        wanted = trained_tokens(one) if one.reward is not None else []
        assert sorted(token for tokens in found for token in tokens) == wanted
        assert all(found), "a row has something to train"


@given(groups(), OPTIONS)
def test_a_session_weighs_once_and_all_its_tokens_have_its_advantage(group: Group, options: dict[str, Any]) -> None:
    rows = grpo(group, **options)
    for one, advantage in zip(group.trajectories, advantages(group.rewards, **options), strict=True):
        for row in of_session(rows, one.session_id):
            assert (row.advantages[row.loss_mask == 1] == np.float32(advantage)).all()
            for array in (row.advantages, row.weights, row.logprobs):
                assert not array[row.loss_mask == 0].any()
            assert (row.policy_versions[row.loss_mask == 0] == -1).all()
        total = sum(float(row.weights.sum()) for row in of_session(rows, one.session_id))
        assert total == pytest.approx(1 if of_session(rows, one.session_id) else 0, abs=1e-5)
    for row in grpo(group, **{**options, "weigh": "token"}):
        assert (row.weights == row.loss_mask).all()


def joined(trajectory: Trajectory) -> Trajectory:
    """The same tokens in one trace: every node hangs below the one before."""
    nodes = [msgspec.structs.replace(node, parent=index - 1) for index, node in enumerate(trajectory.nodes)]
    return built(trajectory.session_id, nodes, trajectory.calls, reward=trajectory.reward)


def credit(rows: list[Row]) -> dict[int, tuple[float, float, int, float]]:
    """By token: all that is trained about it."""
    return {
        token: (float(advantage), float(weight), int(version), float(logprob))
        for row in rows
        for token, masked, advantage, weight, version, logprob in zip(
            row.token_ids.tolist(), row.loss_mask, row.advantages, row.weights, row.policy_versions, row.logprobs,
            strict=True,
        )
        if masked
    }  # fmt: skip


@given(groups(), OPTIONS)
def test_cutting_a_session_s_traces_differently_changes_nothing(group: Group, options: dict[str, Any]) -> None:
    whole = msgspec.structs.replace(group, trajectories=[joined(one) for one in group.trajectories])
    assert credit(grpo(whole, **options)) == credit(grpo(group, **options))


@given(groups(), st.randoms())
def test_the_order_of_a_group_changes_only_the_order_of_rows(group: Group, random: Any) -> None:
    shuffled = list(group.trajectories)
    random.shuffle(shuffled)

    def keyed(given: Group) -> dict[tuple[str, int], list[Any]]:
        return {(row.session_id, row.trace): [row.advantages.tolist(), row.weights.tolist()] for row in grpo(given)}

    assert keyed(msgspec.structs.replace(group, trajectories=shuffled)) == keyed(group)


@given(groups())
def test_what_has_no_reward_is_in_no_row_and_changes_none(group: Group) -> None:
    judged = msgspec.structs.replace(group, trajectories=[one for one in group.trajectories if one.reward is not None])
    assert [credit([row]) for row in grpo(group)] == [credit([row]) for row in grpo(judged)]


@given(trees(rewards=st.just(1.0), updated=True))
def test_each_token_has_the_version_and_the_publication_that_its_call_tells_of_it(trajectory: Trajectory) -> None:
    found = {
        token: (version, publication)
        for row in grpo(Group("t", [trajectory]))
        for token, version, publication, trained in zip(
            row.token_ids.tolist(), row.policy_versions.tolist(), row.publications.tolist(), row.loss_mask, strict=True
        )
        if trained
    }
    wanted = versions_of(trajectory)
    assert found == {token: (-1, -1) if at is None else (at, publication_of(at)) for token, at in wanted.items()}


def two_calls(reward: float, first: float | None) -> Trajectory:
    """A prompt, an answer of 2 tokens, a tool's result, an answer of 1."""
    calls = [
        Call("t.0.c0", "main", "answered", "openai_chat", 0, 1, reward=first),
        Call("t.0.c1", "main", "answered", "openai_chat", 1, 2),
    ]
    nodes = [
        Node(ROOT, pack_ids([1])),
        Node(0, pack_ids([2, 3]), pack_logprobs([-1.0, -1.0]), call=0),
        Node(1, pack_ids([4])),
        Node(2, pack_ids([5]), pack_logprobs([-1.0]), call=1),
    ]
    return built("t.0", nodes, calls, reward=reward)


def test_a_call_s_own_reward_stands_in_the_session_s_place_for_its_tokens() -> None:
    other = built("t.1", two_calls(0.0, None).nodes, two_calls(0.0, None).calls, reward=0.0)
    group = Group("t", [two_calls(1.0, first=0.25), other])
    row, _ = grpo(group, by_deviation=False)
    assert row.advantages.tolist() == [0, -0.25, -0.25, 0, 0.5]


def test_a_trace_that_takes_no_credit_is_not_trained_and_weighs_nothing() -> None:
    branch = Node(0, pack_ids([9, 9]), pack_logprobs([-1.0, -1.0]), call=1)
    one = built("t.0", [*two_calls(1.0, None).nodes, branch], two_calls(1.0, None).calls, reward=1.0)
    main, side = one.traces
    group = Group("t", [msgspec.structs.replace(one, traces=[main, msgspec.structs.replace(side, reward=None)])])
    (row,) = grpo(group)
    assert row.trace == 0
    assert row.weights.sum() == pytest.approx(1)
