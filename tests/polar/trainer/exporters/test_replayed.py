"""Routed experts and sampling masks in each trainer's own slot: which row is of which token, and what is refused.

The checks are those of the trainers' code, at the commits that the exporters name; the lines stand beside them.
"""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from polar.trainer.exporters import nemo, prime_rl, skyrl, slime, verl
from polar.trainer.exporters.replayed import routed_experts
from polar.trainer.exporters.segments import segments
from polar.trainer.groups import Group
from polar.trainer.replay import Replay, drop_uncaptured
from topics.environment.blobs import FolderBlobs
from topics.types.errors import InputError
from topics.types.replay import RoutedExperts, encode, mask_of
from topics.types.trajectory import Trajectory

LAYERS, TOP_K = 3, 2


def experts_of(token: int) -> list[list[int]]:
    """A token's experts, [LAYERS, TOP_K]; the token's id is at the same place of each path."""
    return [[token, 10 * layer] for layer in range(LAYERS)]


def captured(trajectory: Trajectory, blobs: FolderBlobs) -> Trajectory:
    """The session with experts and masks on each call; a later call has the rows that the first one hasn't."""
    paths = {0: [1, 2, 3], 1: [4, 5, 5], 2: [4, 7]}
    calls = []
    for index, call in enumerate(trajectory.calls):
        rows = np.array([experts_of(token) for token in paths[index]], dtype=np.uint8)
        part = RoutedExperts(rows) if index == 0 else RoutedExperts(rows, 3, "c0")
        sampled = [3, 4] if index == 0 else [6] if index == 1 else [8]
        masks = mask_of([[token, token + 100] for token in sampled])
        refs = {"routed_experts": blobs.put(encode(part)).ref, "sampling_mask": blobs.put(encode(masks)).ref}
        calls.append(replace(call, **refs))
    return replace(trajectory, calls=calls)


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path)


@pytest.fixture
def replay(blobs: FolderBlobs) -> Replay:
    return Replay(blobs)


@pytest.fixture
def routed(group: Group, blobs: FolderBlobs) -> Group:
    """`t.0`: [1 2] (3 4) [5 5] (6), and from its (3 4) on [7] (8), with experts and masks."""
    return Group("t", [captured(group.trajectories[0], blobs)])


def expected(tokens: list[int]) -> list[list[list[int]]]:
    return [experts_of(token) for token in tokens]


def test_slime_gets_a_row_for_each_token_but_the_last_and_masks_of_the_response(routed: Group, replay: Replay) -> None:
    """`experts.shape[0] == token_ids.shape[0] - 1` (cp_utils.py); `len(offsets) == response_length + 1` (ray/rollout.py)."""
    [[side, main]] = slime.samples(routed, group_index=0, first_index=0, replay=replay)
    for sample in (side, main):
        experts = sample["rollout_routed_experts"]
        assert (experts.dtype, experts.shape) == (np.int32, (len(sample["tokens"]) - 1, LAYERS, TOP_K))
        assert experts.tolist() == expected(sample["tokens"][:-1])
        ids, offsets = sample["rollout_top_p_token_ids"].tolist(), sample["rollout_top_p_token_offsets"].tolist()
        assert len(offsets) == sample["response_length"] + 1
        assert (offsets[0], offsets[-1]) == (0, len(ids))
        kept = [ids[offsets[n] : offsets[n + 1]] for n in range(sample["response_length"])]
        response = sample["tokens"][-sample["response_length"] :]
        masks = [
            [token, token + 100] if trained else []
            for token, trained in zip(response, sample["loss_mask"], strict=True)
        ]
        assert kept == masks
    assert (
        slime.samples(routed, group_index=0, first_index=0)[0][0]
        .keys()
        .isdisjoint({"rollout_routed_experts", "rollout_top_p_token_ids"})
    )


def test_verl_gets_the_rows_from_the_first_prompt_token_on(routed: Group, replay: Replay) -> None:
    """`start_pos = prompt width - len(prompt_ids)`, int16, zeros elsewhere (agent_loop.py)."""
    outputs = verl.agent_loop_outputs(routed.trajectories[0], replay=replay)
    for output in outputs:
        experts = output["routed_experts"]
        tokens = output["prompt_ids"] + output["response_ids"]
        assert (experts.dtype, len(experts)) == (np.int16, len(tokens) - 1)
        assert experts.tolist() == expected(tokens[:-1])
    batch = verl.data_proto([routed], prompt_length=7, response_length=6, pad_token_id=0, replay=replay).batch
    assert batch["routed_experts"].shape == (2, 13, LAYERS, TOP_K)
    for row, output in zip(batch["routed_experts"], outputs, strict=True):
        start = 7 - len(output["prompt_ids"])
        end = start + len(output["routed_experts"])
        assert np.array_equal(row[start:end], output["routed_experts"])
        assert not row[:start].any()
        assert not row[end:].any()


def test_prime_rl_gets_a_row_for_each_token(routed: Group, replay: Replay) -> None:
    """`routed_experts.shape[0] == len(input_ids)`, and as many bytes (trainer/batch.py)."""
    for sample in prime_rl.training_samples(routed, env_name="e", unknown_temperature=1.0, replay=replay):
        found = msgspec.msgpack.decode(msgspec.msgpack.encode(sample))[7]
        data, shape, dtype = found
        assert shape == [len(sample.token_ids), LAYERS, TOP_K]
        rows = np.frombuffer(data, dtype=dtype).reshape(shape)
        assert rows[:-1].tolist() == expected(sample.token_ids[:-1])
        assert not rows[-1].any()


def test_skyrl_gets_arrays_of_what_was_executed(routed: Group, replay: Replay) -> None:
    """Integers, not negative, at most as many rows as tokens, [layers, top_k] in common (dataset/preprocess.py)."""
    output = skyrl.generator_output([routed], replay=replay)
    for prompt, response, experts in zip(
        output["prompt_token_ids"], output["response_ids"], output["rollout_expert_indices"], strict=True
    ):
        assert experts.tolist() == expected((prompt + response)[:-1])
        assert np.issubdtype(experts.dtype, np.integer)


def test_nemo_gets_each_item_s_rows_in_one_string(routed: Group, replay: Replay) -> None:
    """At least `len(prompt) + len(generation)` rows; the next item's prompt has the last one (environments/nemo_gym.py)."""
    for result in nemo.results(routed, task_index=0, branches="longest", replay=replay):
        for item in result["response"]["output"]:
            magic, dtype, shape, data = item["routed_experts"].split(":")
            tokens = item["prompt_token_ids"] + item["generation_token_ids"]
            assert (magic, dtype, shape) == ("nrlre1", "int16", f"{len(tokens)}x{LAYERS}x{TOP_K}")
            rows = np.frombuffer(base64.b64decode(data), dtype=dtype).reshape(len(tokens), LAYERS, TOP_K)
            assert rows[:-1].tolist() == expected(tokens[:-1])
            assert rows[-1].tolist() == [[0, 1]] * LAYERS


def test_nemo_s_message_log_has_the_rows_of_its_tokens(routed: Group, replay: Replay) -> None:
    trajectory = routed.trajectories[0]
    segment = segments(trajectory)[-1]
    log = nemo.message_log(segment, routed_experts(replay, trajectory, segment))
    tokens = [token for message in log for token in message["token_ids"].tolist()]
    rows = [row for message in log for row in message["routed_experts"].tolist()]
    assert rows[:-1] == expected(tokens[:-1])
    assert rows[-1] == [[0, 1]] * LAYERS


EXPORTS: dict[str, Any] = {
    "slime": lambda group, replay: slime.samples(group, group_index=0, first_index=0, replay=replay),
    "verl": lambda group, replay: verl.agent_loop_outputs(group.trajectories[0], replay=replay),
    "prime_rl": lambda group, replay: prime_rl.training_samples(
        group, env_name="e", unknown_temperature=1.0, replay=replay
    ),
    "skyrl": lambda group, replay: skyrl.generator_output([group], replay=replay),
    "nemo": lambda group, replay: nemo.results(group, task_index=0, branches="longest", replay=replay),
}


@pytest.mark.parametrize("trainer", EXPORTS)
def test_a_session_with_gaps_is_refused_and_its_reason_named(trainer: str, routed: Group, replay: Replay) -> None:
    """Trainers would replay expert 0 there."""
    trajectory = routed.trajectories[0]
    lost = replace(trajectory.calls[1], routed_experts=None, uncaptured={"routed_experts": "too_large"})
    gaps = Group("t", [replace(trajectory, calls=[trajectory.calls[0], lost, trajectory.calls[2]])])
    with pytest.raises(
        InputError, match=r"3 of 6 tokens of trace 0 have no routed_experts \(calls by reason: 1 too_large\)"
    ):
        EXPORTS[trainer](gaps, replay)


def test_the_values_of_a_prompt_that_was_not_read_are_gaps(routed: Group, replay: Replay) -> None:
    trajectory = routed.trajectories[0]
    doubted = replace(trajectory.calls[1], prompt_doubt="ids")
    gaps = Group("t", [replace(trajectory, calls=[trajectory.calls[0], doubted, trajectory.calls[2]])])
    with pytest.raises(InputError, match=r"have no routed_experts \(calls by reason: 1 prompt_doubt\)"):
        EXPORTS["verl"](gaps, replay)


def test_a_trained_token_without_a_mask_is_refused(routed: Group, replay: Replay) -> None:
    """slime would take the whole vocabulary for it."""
    trajectory = routed.trajectories[0]
    lost = replace(trajectory.calls[1], sampling_mask=None, uncaptured={"sampling_mask": "unstored"})
    gaps = Group("t", [replace(trajectory, calls=[trajectory.calls[0], lost, trajectory.calls[2]])])
    with pytest.raises(InputError, match=r"1 of 3 tokens of trace 0 have no sampling_mask"):
        EXPORTS["slime"](gaps, replay)


@pytest.mark.parametrize("trainer", EXPORTS)
def test_a_session_that_captured_nothing_has_no_slots_filled(trainer: str, group: Group, replay: Replay) -> None:
    assert repr(EXPORTS[trainer](group, replay)) == repr(EXPORTS[trainer](group, None))


BATCHES: dict[str, Any] = {
    "slime": EXPORTS["slime"],
    "verl": lambda group, replay: verl.data_proto(
        [group], prompt_length=7, response_length=6, pad_token_id=0, replay=replay
    ),
    "skyrl": EXPORTS["skyrl"],
}


@pytest.mark.parametrize("trainer", BATCHES)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_batch_of_which_only_some_rows_have_experts_is_refused(
    trainer: str, is_first: bool, group: Group, routed: Group, replay: Replay
) -> None:
    mixed = [*routed.trajectories, group.trajectories[1]]
    with pytest.raises(InputError, match=r"groups: 1 of 3 rows .* without routed_experts, .* \(got 't\.1'\)"):
        BATCHES[trainer](Group("t", mixed if is_first else mixed[::-1]), replay)


def test_slime_refuses_a_group_of_which_only_some_rows_have_masks(group: Group, routed: Group, replay: Replay) -> None:
    first, other = routed.trajectories[0], group.trajectories[1]
    masks = replace(first, calls=[replace(call, routed_experts=None) for call in first.calls])
    with pytest.raises(InputError, match="1 of 3 rows are of sessions without sampling_mask"):
        slime.samples(Group("t", [other, masks]), group_index=0, first_index=0, replay=replay)


def test_sessions_with_lost_values_can_be_left_out(group: Group) -> None:
    lost, *others = group.trajectories
    calls = [replace(lost.calls[0], uncaptured={"routed_experts": "busy"}), *lost.calls[1:]]
    counts: Counter[str] = Counter()
    kept = drop_uncaptured(Group("t", [replace(lost, calls=calls), *others]), counts)
    assert kept == Group("t", others)
    assert counts == {"uncaptured": 1}
    assert drop_uncaptured(Group("t", [replace(lost, calls=calls)]), counts) is None
    counts.clear()
    assert drop_uncaptured(group, counts) == group
    assert dict(counts) == {}
