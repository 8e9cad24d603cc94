"""A token tree written out along its paths."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.types.completion import PolicySpan, are_whole
from topics.types.session import Status
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import ROOT, Call, Node, Span, Trace, Trajectory, expand, path

CALLS = [Call(f"c{n}", "main", "answered", "openai_chat", 0, 1) for n in range(3)]


def read(parent: int, *tokens: int) -> Node:
    return Node(parent, pack_ids(tokens))


def sampled(parent: int, call: int, *tokens: int) -> Node:
    return Node(parent, pack_ids(tokens), logprobs=pack_logprobs([-0.5 * t for t in tokens]), call=call)


TREE = Trajectory(
    "t.0",
    "t",
    0,
    1,
    1,
    Status.COMPLETED,
    "prefix_merging",
    "shell",
    nodes=[read(ROOT, 1, 2), sampled(0, 0, 3, 4), read(1, 5), sampled(2, 1, 6), sampled(0, 2, 7)],
    calls=CALLS,
    traces=[Trace("a", leaf=3, trains=[1, 3]), Trace("b", leaf=4, trains=[4]), Trace("c", leaf=3, trains=[3])],
)


def test_a_path_runs_from_the_root_to_the_leaf() -> None:
    assert path(TREE, 3) == [0, 1, 2, 3]
    assert path(TREE, 4) == [0, 4]
    assert path(TREE, ROOT) == []


@pytest.mark.parametrize(
    ("trace", "ids", "mask", "spans"),
    [
        (0, [1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1], [Span(CALLS[0], 2, 4), Span(CALLS[1], 5, 6)]),
        (1, [1, 2, 7], [0, 0, 1], [Span(CALLS[2], 2, 3)]),
        (2, [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 1], [Span(CALLS[1], 5, 6)]),
    ],
)
def test_a_trace_is_written_out_with_mask_logprobs_and_spans(
    trace: int, ids: list[int], mask: list[int], spans: list[Span]
) -> None:
    written = expand(TREE, TREE.traces[trace])
    assert written.token_ids.tolist() == ids
    assert written.loss_mask.tolist() == mask
    assert written.logprobs.tolist() == [
        -0.5 * token if trained else 0.0 for token, trained in zip(ids, mask, strict=True)
    ]
    assert written.spans == spans


def test_a_span_is_of_one_version_where_weights_changed_within_an_answer() -> None:
    updated = msgspec.structs.replace(
        CALLS[0],
        policy_version=7,
        publication=70,
        policy_spans=[PolicySpan(7, 0, 1, 70), PolicySpan(8, 1, 4, 80), PolicySpan(9, 4, 5)],
    )
    nodes = [read(ROOT, 1, 2), sampled(0, 0, 3, 4), sampled(1, 0, 5, 6, 7), read(2, 8), sampled(3, 1, 9)]
    traces = [Trace("a", leaf=4, trains=[1, 2, 4]), Trace("b", leaf=4, trains=[2])]
    tree = msgspec.structs.replace(TREE, nodes=nodes, traces=traces, calls=[updated, CALLS[1]])
    assert expand(tree, traces[0]).spans == [
        Span(updated, 2, 3, 7, 70),
        Span(updated, 3, 4, 8, 80),
        Span(updated, 4, 6, 8, 80),
        Span(updated, 6, 7, 9, None),
        Span(CALLS[1], 8, 9, None, None),
    ]
    assert expand(tree, traces[1]).spans == [Span(updated, 4, 6, 8, 80), Span(updated, 6, 7, 9, None)]


def test_a_call_of_one_version_has_one_publication() -> None:
    call = msgspec.structs.replace(CALLS[0], policy_version=7, publication=70)
    assert call.weights(2, 5) == [(7, 70, 2, 5)]


def test_spans_of_older_records_have_no_publication() -> None:
    older = msgspec.msgpack.encode([7, 0, 3])
    assert msgspec.msgpack.decode(older, type=PolicySpan) == PolicySpan(7, 0, 3, None)


@given(st.lists(st.integers(-1, 12), max_size=6), st.integers(0, 12))
def test_spans_are_whole_where_each_token_is_in_one_and_they_ascend(edges: list[int], tokens: int) -> None:
    spans = [PolicySpan(0, start, end) for start, end in zip(edges[::2], edges[1::2], strict=False)]
    covered = [at for span in spans for at in range(span.start, span.end)]
    is_proper = all(span.start < span.end for span in spans)
    assert are_whole(spans, tokens) == (is_proper and covered == [*range(tokens)])
