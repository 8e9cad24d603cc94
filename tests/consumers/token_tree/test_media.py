"""Prompts with images: what differs in an image alone is another prompt, whatever the token ids say.

The reference is the definition: a prompt is a sequence of (token id, content), where the first placeholder of an image has its content.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.builders.base import BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.builders.prefix_merging import PrefixMerging
from consumers.token_tree.branches import PlacedCall
from consumers.token_tree.placement import place_calls
from consumers.token_tree.tree import grow
from tests.consumers.token_tree.transcripts import build_record, completion, delta, tokens_of
from topics.calls.delta import BLOCK, PromptIndex
from topics.calls.media_marks import listed, marks_of
from topics.calls.resolver import DeltaError, Resolver
from topics.types.building import Filters
from topics.types.completion import Completion, Medium, TokenDelta
from topics.types.token_tree import Masked
from topics.types.tokens import Ids, pack_ids
from topics.types.trajectory import Trace, Trajectory, expand, path

PLACEHOLDER = 9
A, B, C = "00e59a", "010506", "cc"
"""The first marks of A and B are equal: an agent finds such images in 2^16 tries."""

Token = tuple[int, str | None]
"""A token id, and the content of the image that begins there."""
Prompt = tuple[Token, ...]


@dataclass(frozen=True)
class FullCall:
    call_id: str
    prompt: Prompt
    sampled: tuple[int, ...]
    thread: str | None = None

    @property
    def ids(self) -> list[int]:
        return [token_id for token_id, _ in self.prompt]

    @property
    def media(self) -> list[Medium]:
        return [Medium(content, position=at) for at, (_, content) in enumerate(self.prompt) if content is not None]

    @property
    def full(self) -> Prompt:
        return self.prompt + tuple((token_id, None) for token_id in self.sampled)


texts = st.lists(st.integers(0, 2).map(lambda one: ((one, None),)), max_size=3)
images = st.builds(
    lambda content, size: ((PLACEHOLDER, content), *[(PLACEHOLDER, None)] * size),
    st.sampled_from([A, B, C]),
    st.integers(0, 2),
)
pieces = st.lists(st.one_of(texts, texts, images.map(lambda one: [one])), max_size=3).map(
    lambda parts: tuple(token for part in parts for piece in part for token in piece)
)


@st.composite
def conversations(draw: st.DrawFn) -> list[FullCall]:
    """Calls that go on from earlier ones, with other images in them, or leave them somewhere."""
    history: list[FullCall] = []
    for index in range(draw(st.integers(1, 8))):
        prompt: Prompt = draw(pieces)
        if draw(st.integers(0, 5)) and history:
            onto = draw(st.sampled_from(history))
            kept = draw(st.sampled_from([onto.full, onto.prompt, onto.full[: draw(st.integers(0, len(onto.full)))]]))
            swap = draw(st.sampled_from([{}, {}, {A: B}, {A: C}]))
            prompt = tuple((token_id, swap.get(content or "", content)) for token_id, content in kept) + prompt
        sampled = tuple(draw(st.lists(st.integers(0, 2), max_size=3)))
        thread = draw(st.sampled_from([None, "x"]))
        history.append(FullCall(f"c{index}", prompt or ((0, None),), sampled, thread))
    return history


def array(ids: list[int] | tuple[int, ...]) -> Ids:
    return np.array(ids, dtype=np.int32)


@dataclass
class Written:
    """The records of a history as the proxy's index writes them."""

    history: list[FullCall]
    records: list[Completion] = field(default_factory=list)
    index: PromptIndex = field(default_factory=PromptIndex)

    def __post_init__(self) -> None:
        for call in self.history:
            prompt, sampled = array(call.ids), array(call.sampled)
            lineage = None if call.thread is None else {"thread": call.thread}
            written = self.index.encode(prompt, call.media)
            media = listed(call.media, written.shared, self.index.media(written.base))
            self.records.append(completion(call.call_id, written, list(call.sampled), media=media, lineage=lineage))
            self.index.add(call.call_id, prompt, sampled, call.media)


def built(records: list[Completion], builder: PrefixMerging | PerRequest | None = None) -> Trajectory:
    return (builder or PrefixMerging()).build(BuiltFrom(build_record(), records, frozenset()))


def is_prefix(a: Prompt, b: Prompt) -> bool:
    return b[: len(a)] == a


def media_of(trajectory: Trajectory, trace: Trace) -> list[Medium]:
    """The media of a trace, with their positions in it."""
    found, before = list[Medium](), 0
    for index in path(trajectory, trace.leaf):
        node = trajectory.nodes[index]
        found += [Medium(each.digest, position=before + (each.position or 0)) for each in node.media]
        before += len(tokens_of(node.tokens))
    return found


@settings(deadline=None, max_examples=60)
@given(conversations())
def test_a_trace_holds_the_tokens_and_the_images_of_each_call_that_it_trains(history: list[FullCall]) -> None:
    by_id = {call.call_id: call for call in history}
    for builder in (PrefixMerging(), PerRequest()):
        trajectory = built(Written(history).records, builder)
        assert all(tokens_of(node.tokens) for node in trajectory.nodes)
        assert all(min(tokens_of(node.tokens)) >= 0 for node in trajectory.nodes)
        for trace in trajectory.traces:
            leaf = trajectory.nodes[trace.leaf].call
            assert leaf is not None
            expanded = expand(trajectory, trace)
            assert expanded.token_ids.tolist() == [token_id for token_id, _ in history[leaf].full]
            assert media_of(trajectory, trace) == history[leaf].media
            for span in expanded.spans:
                call = by_id[span.call.call_id]
                assert is_prefix(call.prompt, history[leaf].full)
                read = [medium for medium in media_of(trajectory, trace) if (medium.position or 0) < len(call.prompt)]
                assert read == call.media


@settings(deadline=None, max_examples=60)
@given(conversations())
def test_a_parent_is_the_longest_call_that_the_prompt_extends_images_included(history: list[FullCall]) -> None:
    trajectory = built(Written(history).records)
    for index, call in enumerate(history):
        fits = [
            (len(other.full), other.thread == call.thread, at, other.call_id)
            for at, other in enumerate(history[:index])
            if other.sampled and is_prefix(other.full, call.prompt)
        ]
        assert trajectory.calls[index].parent == (max(fits)[3] if fits else None)


@settings(deadline=None, max_examples=60)
@given(conversations(), st.sampled_from([10**6, 24]))
def test_readers_of_the_log_know_the_images_of_whole_prompts(history: list[FullCall], max_tokens: int) -> None:
    """Also if the proxy forgets calls in between."""
    records = Written(history, index=PromptIndex(max_tokens)).records
    resolver = Resolver()
    for call, record, place in zip(history, records, place_calls(records, frozenset()), strict=True):
        resolver.add(record)
        assert resolver.prompt(call.call_id).tolist() == call.ids
        assert isinstance(place, PlacedCall)
        assert list(place.media) == call.media


@settings(deadline=None, max_examples=60)
@given(conversations())
def test_the_log_gives_back_prompts_as_they_were_read(history: list[FullCall]) -> None:
    resolver, written = Resolver(), Written(history)
    for call, record in zip(history, written.records, strict=True):
        resolver.add(record)
        assert resolver.prompt(call.call_id).tolist() == call.ids
        assert list(written.index.media(call.call_id)) == call.media
        known = written.index.tokens(call.call_id, len(call.ids))
        assert known is not None
        assert known.tolist() == call.ids
        whole = written.index.tokens(call.call_id)
        assert whole is not None
        assert whole.tolist() == call.ids + list(call.sampled)
        assert written.index.tokens(call.call_id, len(whole) + 1) is None


@settings(deadline=None, max_examples=60)
@given(conversations())
def test_how_deltas_were_written_changes_nothing(history: list[FullCall]) -> None:
    written = Written(history).records
    # No prompt is as long as a block, so the chain says nothing.
    in_full = [
        completion(call.call_id, delta(call.ids), list(call.sampled), media=call.media, lineage=record.lineage)
        for call, record in zip(history, written, strict=True)
    ]
    assert built(written) == built(in_full)


@settings(deadline=None, max_examples=60)
@given(conversations())
def test_what_is_shared_with_a_base_is_the_longest_beginning_with_the_same_images(history: list[FullCall]) -> None:
    for index, record in enumerate(Written(history).records):
        prompt = history[index].prompt
        alike = [
            len(list(takewhile(lambda pair: pair[0] == pair[1], zip(prompt, other.full, strict=False))))
            for other in history[:index]
        ]
        assert record.prompt.shared == max(alike, default=0)


def two(first: str, second: str, size: int = 3) -> list[FullCall]:
    """Two prompts with an image each, and a call that continues the second."""
    ones = [
        FullCall(f"c{at}", ((1, None), (PLACEHOLDER, content), *[(PLACEHOLDER, None)] * size, (2, None)), (3 + at, 5))
        for at, content in enumerate((first, second))
    ]
    return [*ones, FullCall("c2", (*ones[1].full, (7, None)), (8,))]


def test_two_prompts_that_differ_in_an_image_alone_are_two() -> None:
    trajectory = built(Written(two(A, B)).records)
    assert [(call.parent, call.branch) for call in trajectory.calls] == [(None, "root"), (None, "media"), ("c1", None)]
    assert [media_of(trajectory, trace) for trace in trajectory.traces] == [
        [Medium(B, position=1)],
        [Medium(A, position=1)],
    ]
    assert trajectory.nodes[0].media == []
    assert tokens_of(trajectory.nodes[0].tokens) == [1], "shared up to the image"


def test_images_whose_first_marks_are_equal_are_two() -> None:
    assert marks_of(Medium(A))[0] == marks_of(Medium(B))[0]
    for first, second in ((A, B), (B, A)):
        trajectory = built(Written(two(first, second)).records)
        assert [call.branch for call in trajectory.calls] == ["root", "media", None]
        found = [[medium.digest for medium in media_of(trajectory, trace)] for trace in trajectory.traces]
        assert found == [[second], [first]]


def test_an_image_at_the_end_of_a_prompt_begins_with_the_answer() -> None:
    call = completion("c0", delta([1]), [3, 4], media=[Medium(A, position=1)])
    [trace] = (trajectory := built([call])).traces
    assert media_of(trajectory, trace) == [Medium(A, position=1)]


def test_two_prompts_with_one_image_are_one() -> None:
    trajectory = built(Written(two(A, A)).records)
    assert [(call.parent, call.branch) for call in trajectory.calls] == [
        (None, "root"),
        (None, "retry"),
        ("c1", None),
    ]


def test_images_of_unknown_place_stand_before_the_first_token() -> None:
    """So what shares a beginning shares them all."""
    ids, both = [1, PLACEHOLDER, 2], [Medium(A), Medium(B)]
    records = [
        completion("c0", delta(ids), [3], media=[Medium(A)]),
        completion("c1", delta([*ids, 3, PLACEHOLDER]), [4], media=both),
        completion("c2", delta([*ids, 3, PLACEHOLDER, 4, 5]), [6], media=both),
    ]
    trajectory = built(records)
    assert [(call.parent, call.branch) for call in trajectory.calls] == [(None, "root"), (None, "root"), ("c1", None)]
    assert [media_of(trajectory, trace) for trace in trajectory.traces] == [
        [Medium(A, position=0), Medium(B, position=0)],
        [Medium(A, position=0)],
    ]


def test_a_long_prompt_whose_record_names_another_image_is_told_by_its_chain() -> None:
    [first, *_] = Written(two(A, B, BLOCK)).records
    changed = completion("c0", first.prompt, [3], media=[Medium(B, position=1)])
    assert grow([changed], frozenset()).masked == [Masked.CHAIN_DIFFERS]


def test_a_delta_whose_base_has_another_image_there_has_no_place() -> None:
    first = completion("a", delta([1, PLACEHOLDER]), [3], media=[Medium(A, position=1)])
    second = completion("b", TokenDelta(pack_ids([4]), 3, "a"), [5], media=[Medium(B, position=1)])
    assert grow([first, second], frozenset()).masked == [None, Masked.CHAIN_DIFFERS]
    resolver = Resolver()
    resolver.add(first)
    with pytest.raises(DeltaError, match="call b: has other images or audio than a"):
        resolver.add(second)


def test_an_image_that_was_stored_for_one_call_is_stored_for_all() -> None:
    ids, stored = [1, PLACEHOLDER], Medium(A, position=1, blob="blob:sha256/aa")
    records = [
        completion(f"c{at}", delta(ids), [2], media=[medium])
        for at, medium in enumerate((Medium(A, position=1), stored, Medium(A, position=1)))
    ]
    assert built(records).nodes[0].media == [stored]


def test_limits_count_tokens_and_no_marks() -> None:
    records = Written(two(A, B)[:1]).records
    length = len(two(A, B)[0].full)
    assert grow(records, frozenset(), Filters(max_tokens=length)).masked == [None]
    assert grow(records, frozenset(), Filters(max_tokens=length - 1)).masked == [Masked.FILTERED_LONG]


def test_calls_with_images_can_be_left_out() -> None:
    first = completion("c0", delta([1]), [2])
    second = completion("c1", delta([1, 2, PLACEHOLDER]), [3], media=[Medium(A, position=2)])
    assert grow([first, second], frozenset(), Filters(drop_media=True)).masked == [None, Masked.FILTERED_MEDIA]
