"""A call's tokens out of a token tree."""

from __future__ import annotations

import pytest

from polar.export.call_tokens import Use, call_tokens
from topics.types.session import Status
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import ROOT, Call, Node, Trace, Trajectory

CALLS = [Call(f"c{n}", "main", "answered", "openai_chat", 0, 1) for n in range(2)]


def tree(logprobs: list[float]) -> Trajectory:
    """The second call continues the first after two of its three tokens; the last of them is trained nowhere."""
    nodes = [
        Node(ROOT, pack_ids([1, 2])),
        Node(0, pack_ids([3, 4]), pack_logprobs([-0.5, -0.25]), call=0),
        Node(1, pack_ids([5]), pack_logprobs(logprobs), call=0, masked="no_trace"),
        Node(1, pack_ids([6])),
        Node(3, pack_ids([7]), pack_logprobs([-1.0]), call=1),
    ]
    traces = [Trace("t.0/c1", leaf=4, trains=[1, 4])]
    return Trajectory(
        "t.0", "t", 0, 1, 1, Status.COMPLETED, "prefix_merging", "pi", nodes=nodes, calls=CALLS, traces=traces
    )


def test_prompt_sampled_tokens_and_what_becomes_of_them() -> None:
    first, second = (call_tokens(tree([-2.0]))[index] for index in range(2))
    assert (first.prompt.tolist(), first.sampled.tolist()) == ([1, 2], [3, 4, 5])
    assert first.logprobs is not None
    assert first.logprobs.tolist() == [-0.5, -0.25, -2.0]
    assert first.uses == [Use(0, 2, "t.0/c1", None), Use(2, 3, None, "no_trace")]
    assert (second.prompt.tolist(), second.sampled.tolist()) == ([1, 2, 3, 4, 6], [7])
    assert second.uses == [Use(0, 1, "t.0/c1", None)]


@pytest.mark.parametrize("logprobs", [[], [float("nan")], [float("-inf")]])
def test_logprobs_that_the_record_lacks_are_left_out(logprobs: list[float]) -> None:
    assert call_tokens(tree(logprobs))[0].logprobs is None
