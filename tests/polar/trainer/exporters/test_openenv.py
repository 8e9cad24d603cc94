"""OpenEnv's `TrainingTrace`: a turn a call, trace by trace; tests/polar/trainer/openenv_package runs OpenEnv's own model."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from polar.trainer.exporters.openenv import env_reward, training_trace
from polar.trainer.exporters.segments import segments
from polar.trainer.groups import Group
from tests.polar.trainer.exporters.conftest import with_rewards
from tests.polar.trainer.trees import built, rewarded_tokens, trees
from topics.types.completion import Medium, Sampling
from topics.types.errors import InputError
from topics.types.tokens import pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from topics.types.trajectory import ROOT, Call, Node, Trajectory


def transcript(turn: dict[str, Any]) -> str:
    """Prompt, then sampled tokens; trained ones in brackets."""
    prompt, sampled, mask = turn["prompt_token_ids"], turn["completion_token_ids"], turn["loss_mask"]
    parts = [f"({token})" if trained else str(token) for token, trained in zip([*prompt, *sampled], mask, strict=True)]
    return f"{' '.join(parts[: len(prompt)])} -> {' '.join(parts[len(prompt) :])}"


def rows_of(turns: list[dict[str, Any]]) -> list[list[tuple[int, float | None]]]:
    """What TRL does with `fork_threshold_tokens=0`: rows of tokens, each with its logprob if it is trained."""
    rows: list[list[tuple[int, float | None]]] = []
    for turn in turns:
        prompt: list[int] = turn["prompt_token_ids"]
        held = [token for token, _ in rows[-1]] if rows else []
        if not rows or prompt[: len(held)] != held:
            rows.append([])
            held = []
        rows[-1] += [(token, None) for token in prompt[len(held) :]]
        mask = turn["loss_mask"][len(prompt) :]
        sampled = zip(turn["completion_token_ids"], turn["per_token_logps"], mask, strict=True)
        rows[-1] += [(token, logprob if trained else None) for token, logprob, trained in sampled]
    return rows


def test_a_turn_is_a_call_with_its_whole_prompt_trace_by_trace(group: Group) -> None:
    trace = training_trace(group.trajectories[0])
    assert trace["schema_version"] == 1
    assert [transcript(turn) for turn in trace["turns"]] == ["1 2 -> (3) (4)", "1 2 3 4 5 5 -> (6)", "1 2 3 4 7 -> (8)"]
    assert [turn["node_id"] for turn in trace["turns"]] == ["c0", "c1", "c2"]
    assert [turn["per_token_logps"] for turn in trace["turns"]] == [[-0.5, -0.25], [-1.0], [-2.0]]
    assert trace["turns"][1]["metadata"] == {
        "session_id": "t.0",
        "kind": "main",
        "model": None,
        "temperature": None,
        "policy_version": 5,
        "finish_reason": None,
    }
    assert [env_reward(one) for one in group.trajectories] == [1.0, 0.0, None]


def test_a_session_without_a_reward_has_no_turns(group: Group) -> None:
    assert training_trace(group.trajectories[2]) == {"schema_version": 1, "turns": []}


def test_a_side_call_has_no_turn_and_a_masked_call_that_was_continued_is_read_by_the_next() -> None:
    """A title beside the work, and an answer of which only the first token was continued; its last token is masked."""
    names = [("c0", "main"), ("c1", "title"), ("c2", "main"), ("c3", "main")]
    calls = [Call(name, kind, "answered", "openai_chat", at, at + 1) for at, (name, kind) in enumerate(names)]
    nodes = [
        Node(ROOT, pack_ids([1])),
        Node(0, pack_ids([2]), pack_logprobs([-0.5]), call=0, masked="filtered_truncated"),
        Node(ROOT, pack_ids([90])),
        Node(2, pack_ids([91]), pack_logprobs([-0.5]), call=1, masked="side_call"),
        Node(1, pack_ids([3])),
        Node(4, pack_ids([4]), pack_logprobs([1e-7]), call=2),
        Node(5, pack_ids([5]), pack_logprobs([-3.0]), call=2, masked="no_trace"),
        Node(5, pack_ids([6])),
        Node(7, pack_ids([7]), pack_logprobs([-0.25]), call=3),
    ]
    turns = training_trace(built("t.0", nodes, calls, reward=1.0))["turns"]
    assert [transcript(turn) for turn in turns] == ["1 2 3 -> (4) 5", "1 2 3 4 6 -> (7)"]
    assert turns[0]["per_token_logps"] == [0.0, 0.0], "not above 0, and 0 where it isn't trained"


def test_what_one_reward_has_no_place_for_is_refused_by_name(group: Group, linear: Group) -> None:
    agreed = with_rewards(group, 0.5, 0.5, 0.5).trajectories[0]
    assert env_reward(agreed) == 0.5
    differing = with_rewards(group, 0.5, 0.5, None).trajectories[0]
    for function in (training_trace, env_reward):
        with pytest.raises(InputError, match=r"groups: its calls have the rewards \[0\.5, 1\.0\].*t\.0"):
            function(differing)
    first, *others = linear.trajectories[0].calls
    mixed = msgspec.structs.replace(
        linear.trajectories[0], calls=[msgspec.structs.replace(first, sampling=Sampling(temperature=1.0)), *others]
    )
    with pytest.raises(InputError, match="temperature"):
        training_trace(mixed)
    seen, *nodes = linear.trajectories[0].nodes
    with_image = msgspec.structs.replace(seen, media=[Medium("image", "a" * 64, position=0)])
    with pytest.raises(InputError, match="drop_media"):
        training_trace(msgspec.structs.replace(linear.trajectories[0], nodes=[with_image, *nodes]))


@given(trees())
def test_each_rewarded_token_is_trained_once_after_what_it_was_sampled_after(
    trajectory: Trajectory,
) -> None:
    """Each token of these trees is another."""
    before: dict[int, list[int]] = {}
    logprobs: dict[int, float] = {}
    for node in trajectory.nodes:
        above = [] if node.parent == ROOT else unpack_ids(trajectory.nodes[node.parent].tokens).tolist()
        path = [*before[above[-1]], above[-1]] if above else []
        for token in unpack_ids(node.tokens).tolist():
            before[token] = path
            path = [*path, token]
        if node.logprobs is not None:
            tokens = unpack_ids(node.tokens).tolist()
            logprobs |= dict(zip(tokens, unpack_logprobs(node.logprobs).tolist(), strict=True))
    turns = training_trace(trajectory)["turns"]
    rows = rows_of(turns)
    trained = [(token, at, row) for row in rows for at, (token, logprob) in enumerate(row) if logprob is not None]
    assert sorted(token for token, *_ in trained) == rewarded_tokens(Group("t", [trajectory]))
    for token, at, row in trained:
        assert [one for one, _ in row[:at]] == before[token]
        assert row[at][1] == logprobs[token]
    assert all(any(turn["loss_mask"]) for turn in turns)
    is_divided = any(
        node.parent != ROOT and node.call is not None and node.call == trajectory.nodes[node.parent].call
        for node in trajectory.nodes
    )
    if trajectory.reward is not None and not is_divided:
        assert len(rows) <= len(segments(trajectory)), "a trace is one row"
