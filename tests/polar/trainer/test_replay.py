"""What a trainer replays stands at the token that it belongs to, whatever calls brought it, and what no call has is left open.

Conversations run on the scripted engine, whose experts depend on token and place, through the proxy's engine client and the builder.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from polar.scripted.replay import experts_of, mask_of
from polar.trainer.groups import Group
from polar.trainer.replay import UNROUTED, Replay, drop_uncaptured
from proxy.blob_writer import BlobWriter
from proxy.chat import Message
from proxy.replay_store import ReplayStore
from tests.polar.trainer.trees import built
from tests.proxy.engines.test_vllm_replay import VOCABULARY, Talk, returning, talking
from topics.completions import Build
from topics.environment.blobs import FolderBlobs
from topics.types.errors import InputError
from topics.types.replay import RoutedExperts, encode
from topics.types.session import Status
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import ROOT, Call, Node, Trajectory, expand


def trajectory_of(talk: Talk) -> Trajectory:
    build = Build("t.0", "t", 0, 1, 1, "c1", Status.COMPLETED, "prefix_merging", b"{}", "shell", reward=1.0)
    return PrefixMerging().build(BuiltFrom(build, talk.records, frozenset()))


async def test_each_token_of_a_merged_conversation_has_its_row_and_mask(tmp_path: Path) -> None:
    async with talking(returning(), tmp_path) as talk:
        for turn in range(3):
            await talk.say(f"turn {turn}")
    trajectory, replay = trajectory_of(talk), Replay(talk.blobs)
    [trace] = trajectory.expanded()
    experts, mask = replay.routed_experts(trajectory, 0), replay.sampling_mask(trajectory, 0)
    assert experts is not None
    assert mask is not None
    tokens = trace.token_ids.tolist()
    assert np.array_equal(experts[:-1], experts_of(tokens[:-1]))
    assert np.all(experts[-1] == UNROUTED)
    assert len(trace.spans) == 3
    expected = [
        mask_of(token, 20, VOCABULARY) if trained else []
        for token, trained in zip(tokens, trace.loss_mask, strict=True)
    ]
    assert [mask.at(token).tolist() for token in range(len(mask))] == expected


async def test_branches_have_their_own_rows(tmp_path: Path) -> None:
    async with talking(returning(), tmp_path) as talk:
        await talk.say("one")
        await talk.say("two")
        talk.messages[-3] = Message("assistant", "Something else.")
        await talk.say("three")
    trajectory, replay = trajectory_of(talk), Replay(talk.blobs)
    assert len(trajectory.traces) == 2
    for index, trace in enumerate(trajectory.expanded()):
        experts = replay.routed_experts(trajectory, index)
        assert experts is not None
        assert np.array_equal(experts[:-1], experts_of(trace.token_ids.tolist()[:-1]))


async def test_what_a_call_lost_its_next_call_has(tmp_path: Path) -> None:
    """But for the masks, which no other call has."""
    async with talking(returning(), tmp_path) as talk:
        for turn in range(3):
            talk.store = ReplayStore(
                BlobWriter(FolderBlobs(Path("/dev/null") if turn == 1 else tmp_path)), talk.metrics
            )
            await talk.say(f"turn {turn}")
    trajectory, replay = trajectory_of(talk), Replay(talk.blobs)
    [trace] = trajectory.expanded()
    experts, mask = replay.routed_experts(trajectory, 0), replay.sampling_mask(trajectory, 0)
    assert experts is not None
    assert mask is not None
    assert np.array_equal(experts[:-1], experts_of(trace.token_ids.tolist()[:-1]))
    masked = [len(mask.at(span.start)) > 0 for span in trace.spans]
    assert masked == [True, False, True]
    assert [span.call.uncaptured for span in trace.spans][1] == {
        "routed_experts": "unstored",
        "sampling_mask": "unstored",
    }


async def test_rows_that_the_last_call_lost_are_open(tmp_path: Path) -> None:
    async with talking(returning(), tmp_path) as talk:
        await talk.say("one")
        talk.store = ReplayStore(BlobWriter(FolderBlobs(Path("/dev/null"))), talk.metrics)
        await talk.say("two")
    trajectory = trajectory_of(talk)
    [trace] = trajectory.expanded()
    experts = Replay(talk.blobs).routed_experts(trajectory, 0)
    assert experts is not None
    known = len(talk.tokens[0]) - 1
    assert np.array_equal(experts[:known], experts_of(trace.token_ids.tolist()[:known]))
    assert np.all(experts[known:] == UNROUTED)


async def test_a_session_without_captured_values_has_none(tmp_path: Path) -> None:
    async with talking(returning(frozenset()), tmp_path) as talk:
        await talk.say("one")
    trajectory, replay = trajectory_of(talk), Replay(talk.blobs)
    assert (replay.routed_experts(trajectory, 0), replay.sampling_mask(trajectory, 0)) == (None, None)


def two_calls(blobs: FolderBlobs, *parts: RoutedExperts | None) -> Trajectory:
    """[1 2] (3 4) [5] (6); the second call leaves the first one's answer after its first token if there are three parts."""
    refs = [None if part is None else blobs.put(encode(part)).ref for part in parts]
    calls = [
        Call(f"c{index}", "main", "answered", "openai_chat", index, index + 1, routed_experts=ref)
        for index, ref in enumerate(refs)
    ]
    nodes = [
        Node(ROOT, pack_ids([1, 2])),
        Node(0, pack_ids([3]), pack_logprobs([-1.0]), call=0),
        Node(1, pack_ids([4]), pack_logprobs([-1.0]), call=0),
        Node(2 if len(refs) == 2 else 1, pack_ids([5])),
        Node(3, pack_ids([6]), pack_logprobs([-1.0]), call=len(refs) - 1),
    ]
    return built("t.0", nodes, calls, reward=1.0)


def rows(*values: int, layers: int = 1) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.array([[[value]] * layers for value in values], dtype=np.uint8)


def firsts(trajectory: Trajectory, blobs: FolderBlobs, last_token: int) -> list[int]:
    """The first layer's expert of each token of the trace that ends with this token."""
    index = next(
        number
        for number, trace in enumerate(trajectory.traces)
        if expand(trajectory, trace).token_ids.tolist()[-1] == last_token
    )
    experts = Replay(blobs).routed_experts(trajectory, index)
    assert experts is not None
    return [int(one) for one in experts[:, 0, 0]]


def test_the_first_call_that_read_a_token_has_its_row(tmp_path: Path) -> None:
    """The second call read everything once more, behind new weights, say."""
    blobs = FolderBlobs(tmp_path)
    trajectory = two_calls(blobs, RoutedExperts(rows(11, 12, 13)), RoutedExperts(rows(21, 22, 23, 24, 25)))
    assert firsts(trajectory, blobs, 6) == [11, 12, 13, 24, 25, UNROUTED]


def test_rows_of_an_answer_count_up_to_where_the_trace_leaves_it(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    trajectory = two_calls(blobs, RoutedExperts(rows(11, 12, 13, 14)), None, None)
    assert firsts(trajectory, blobs, 6) == [11, 12, 13, UNROUTED, UNROUTED]


@pytest.mark.parametrize("chained", [False, True])
def test_no_row_comes_from_a_call_whose_prompt_was_not_read(tmp_path: Path, chained: bool) -> None:
    """Also if the next call's record names it for the rows before its own."""
    blobs = FolderBlobs(tmp_path)
    second = RoutedExperts(rows(24, 25), 3, "c0") if chained else RoutedExperts(rows(21, 22, 23, 24, 25))
    trajectory = two_calls(blobs, RoutedExperts(rows(11, 12, 13)), second)
    doubted = msgspec.structs.replace(trajectory.calls[0], prompt_doubt="ids", sampling_mask="blob:never-read")
    trajectory = msgspec.structs.replace(trajectory, calls=[doubted, trajectory.calls[1]])
    before = [UNROUTED] * 3 if chained else [21, 22, 23]
    assert firsts(trajectory, blobs, 6) == [*before, 24, 25, UNROUTED]
    assert Replay(blobs).sampling_mask(trajectory, 0) is None


def test_sessions_that_lack_what_was_captured_or_read_can_be_dropped() -> None:
    def session(number: int, **of_call: Any) -> Trajectory:
        call = Call("c0", "main", "answered", "openai_chat", 0, 1, **of_call)
        nodes = [Node(ROOT, pack_ids([1, 2])), Node(0, pack_ids([3]), pack_logprobs([-1.0]), call=0)]
        return built(f"t.{number}", nodes, [call], reward=1.0)

    kept = [session(0, routed_experts="blob:x"), session(1, prompt_doubt="ids")]
    lost = [
        session(2, uncaptured={"routed_experts": "busy"}),
        session(3, routed_experts="blob:x", prompt_doubt="ids"),
        session(4, sampling_mask="blob:x", prompt_doubt="count"),
    ]
    counts = Counter[str]()
    found = drop_uncaptured(Group("t", [*kept, *lost]), counts)
    assert found is not None
    assert found.trajectories == kept
    assert counts == {"uncaptured": 3}


def test_rows_of_another_model_are_left_out(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    trajectory = two_calls(blobs, RoutedExperts(rows(11, 12, 13, layers=2)), RoutedExperts(rows(21, 22, 23, 24, 25)))
    assert firsts(trajectory, blobs, 6) == [21, 22, 23, 24, 25, UNROUTED]


def test_a_blob_that_is_gone_is_named_with_the_way_out(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "here")
    trajectory = two_calls(blobs, RoutedExperts(rows(11, 12, 13)), None)
    with pytest.raises(
        InputError,
        match=r"^routed_experts: \S+ hasn't the routed_experts of call c0 of t\.0: name the proxies' store \(POLAR_BLOBS\)",
    ):
        Replay(FolderBlobs(tmp_path / "elsewhere")).routed_experts(trajectory, 0)


def test_a_blob_of_another_kind_is_refused(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    trajectory = two_calls(blobs, RoutedExperts(rows(11, 12, 13)), None)
    calls = [msgspec.structs.replace(call, sampling_mask=call.routed_experts) for call in trajectory.calls]
    with pytest.raises(InputError, match="expected sampling_mask, got routed_experts"):
        Replay(blobs).sampling_mask(msgspec.structs.replace(trajectory, calls=calls), 0)
