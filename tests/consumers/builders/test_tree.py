"""Any tree of calls, in any order in which its answers could have come, its deltas against any earlier call.

The reference is the definition written out token by token and prompt by prompt: no runs, no cuts, no deltas.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.builders.base import Builder, BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.builders.prefix_merging import PrefixMerging
from consumers.builders.tree import grow
from polar.types.completion import Completion
from polar.types.tokens import count, pack_logprobs
from polar.types.trajectory import ROOT, Trajectory, expand, path
from tests.consumers.builders.transcripts import build_record, completion, delta, logprobs_for, tokens_of

Tokens = tuple[int, ...]
BUILDERS: list[Builder] = [PrefixMerging(), PerRequest()]


@dataclass(frozen=True)
class Said:
    """A call in full: what the engine read and sampled."""

    call_id: str
    prompt: Tokens
    sampled: Tokens
    kind: str = "main"
    thread: str | None = None
    disowned: bool = False
    broken: bool = False
    """Its logprobs don't fit."""

    @property
    def full(self) -> Tokens:
        return self.prompt + self.sampled

    @property
    def lineage(self) -> dict[str, str] | None:
        return None if self.thread is None else {"thread": self.thread}


def shared(a: Tokens, b: Tokens) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


tokens = st.lists(st.integers(0, 2), max_size=4).map(tuple)
"""Of three ids, so that chance meetings are common."""


@st.composite
def conversations(draw: st.DrawFn) -> list[Said]:
    """Calls in log order: each goes on from an earlier one's end, leaves it somewhere, repeats its prompt, or starts anew."""
    said: list[Said] = []
    for index in range(draw(st.integers(0, 9))):
        prompt: Tokens = draw(tokens) or (0,)
        if said and draw(st.integers(0, 5)) > 0:
            onto = draw(st.sampled_from(said))
            somewhere = draw(st.integers(0, len(onto.full)))
            kept = draw(st.sampled_from([len(onto.full), len(onto.full), len(onto.prompt), somewhere]))
            prompt = (onto.full[:kept] + draw(tokens)) or (0,)
        said.append(
            Said(
                f"c{index}",
                prompt,
                draw(tokens),
                kind=draw(st.sampled_from(["main", "main", "subagent", "title"])),
                thread=draw(st.sampled_from([None, None, "x", "y"])),
                disowned=draw(st.integers(0, 7)) == 0,
                broken=draw(st.integers(0, 7)) == 0,
            )
        )
    return said


def records(said: list[Said], bases: list[int | None]) -> list[Completion]:
    """As a proxy might have written them: `bases[i]` chooses the base of call i among those before it."""
    written = []
    for index, call in enumerate(said):
        choice = bases[index]
        base = said[choice % index] if choice is not None and index else None
        written.append(
            completion(
                call.call_id,
                delta(list(call.prompt), base.call_id if base else None, list(base.full) if base else None),
                list(call.sampled),
                kind=call.kind,
                lineage=call.lineage,
                **({"logprobs": b""} if call.broken else {}),
            )
        )
    return written


def built(builder: Builder, said: list[Said], bases: list[int | None] | None = None) -> Trajectory:
    disowned = frozenset(call.call_id for call in said if call.disowned)
    return builder.build(BuiltFrom(build_record(), records(said, bases or [0] * len(said)), disowned))


choices = st.lists(st.none() | st.integers(0, 9), min_size=9, max_size=9)


@settings(max_examples=150, deadline=None)
@given(conversations(), choices)
def test_each_sampled_token_is_trained_exactly_once_or_masked_with_a_reason(
    said: list[Said], bases: list[int | None]
) -> None:
    for builder in BUILDERS:
        trajectory = built(builder, said, bases)
        trained = Counter(node for trace in trajectory.traces for node in trace.trains)
        for index, node in enumerate(trajectory.nodes):
            assert trained[index] == (node.call is not None and node.masked is None)
        for index, call in enumerate(said):
            own = [node for node in trajectory.nodes if node.call == index]
            assert sum((tuple(tokens_of(node.tokens)) for node in own), ()) == call.sampled
            if not call.broken:
                assert b"".join(node.logprobs or b"" for node in own) == pack_logprobs(
                    logprobs_for(call.call_id, list(call.sampled))
                )
        stats = trajectory.stats
        assert stats.sampled_tokens == sum(len(call.sampled) for call in said)
        assert stats.sampled_tokens == stats.trainable_tokens + sum(stats.masked_tokens.values())
        assert stats.trainable_tokens == sum(
            int(expand(trajectory, trace).loss_mask.sum()) for trace in trajectory.traces
        )


@settings(max_examples=150, deadline=None)
@given(conversations(), choices)
def test_each_trace_is_what_its_last_call_read_and_sampled(said: list[Said], bases: list[int | None]) -> None:
    for builder in BUILDERS:
        trajectory = built(builder, said, bases)
        assert all(ROOT <= node.parent < index and node.tokens for index, node in enumerate(trajectory.nodes))
        for trace in trajectory.traces:
            leaf = trajectory.nodes[trace.leaf].call
            assert leaf is not None
            expanded = expand(trajectory, trace)
            assert tuple(expanded.token_ids.tolist()) == said[leaf].full
            assert trace.trains
            assert set(trace.trains) <= set(path(trajectory, trace.leaf))
            assert trace.trains == sorted(trace.trains)
            for span in expanded.spans:
                call = said[int(span.call.call_id[1:])]
                at = span.start - len(call.prompt)
                assert call.prompt == said[leaf].full[: len(call.prompt)], (
                    "trained under the prefix that it was sampled under"
                )
                wanted = logprobs_for(call.call_id, list(call.sampled))[at : at + span.end - span.start]
                assert expanded.logprobs[span.start : span.end].tolist() == wanted


@settings(max_examples=150, deadline=None)
@given(conversations(), choices)
def test_how_deltas_were_written_changes_nothing(said: list[Said], bases: list[int | None]) -> None:
    for builder in BUILDERS:
        assert built(builder, said, bases) == built(builder, said, [None] * 9)


@settings(max_examples=150, deadline=None)
@given(conversations())
def test_a_parent_is_the_longest_call_before_that_the_prompt_extends(said: list[Said]) -> None:
    trajectory = built(PrefixMerging(), said)
    for index in range(len(said)):
        assert trajectory.calls[index].parent == reference_parent(said, index)
        if trajectory.calls[index].branch is None:
            assert trajectory.calls[index].parent is not None


def reference_parent(said: list[Said], index: int) -> str | None:
    call = said[index]
    fits = [
        (len(other.full), other.lineage == call.lineage, i, other.call_id)
        for i, other in enumerate(said[:index])
        if other.sampled and not other.disowned and call.prompt[: len(other.full)] == other.full
    ]
    return max(fits)[3] if fits else None


@settings(max_examples=150, deadline=None)
@given(conversations(), choices)
def test_the_tree_holds_each_token_once(said: list[Said], bases: list[int | None]) -> None:
    tree = grow(records(said, bases), frozenset(call.call_id for call in said if call.disowned))
    assert sum(count(node.tokens) for node in tree.nodes) == reference_size(said)


def reference_size(said: list[Said]) -> int:
    """Tokens of a trie of (token, who sampled it), each prompt following its parent's end and then the longest path there is."""
    paths: list[tuple[tuple[int, str | None], ...]] = []
    ends: dict[str, tuple[tuple[int, str | None], ...]] = {}
    for index, call in sorted(enumerate(said), key=lambda item: (len(item[1].prompt), item[0])):
        if not call.sampled:
            continue
        parent = reference_parent(said, index)
        best = ends[parent] if parent is not None else ()
        for known in paths:
            common = shared(tuple(token for token, _ in known), call.prompt)
            if common > len(best) and known[: len(ends.get(parent or "", ()))] == ends.get(parent or "", ()):
                best = known[:common]
        unread = tuple((token, None) for token in call.prompt[len(best) :])
        ends[call.call_id] = best + unread + tuple((token, call.call_id) for token in call.sampled)
        paths.append(ends[call.call_id])
    return len({known[: i + 1] for known in paths for i in range(len(known))})


@settings(max_examples=150, deadline=None)
@given(conversations(), st.randoms(use_true_random=False))
def test_the_order_in_which_unrelated_calls_arrive_changes_nothing_but_indexes(
    said: list[Said], random: Random
) -> None:
    """Unrelated: neither holds what the other sampled, nor has its prompt."""
    keys = {call.call_id: random.random() for call in said}
    left, shuffled = list(said), []
    while left:
        free = [c for i, c in enumerate(left) if not any(related(c, before) for before in left[:i])]
        shuffled.append(min(free, key=lambda call: keys[call.call_id]))
        left.remove(shuffled[-1])
    for builder in BUILDERS:
        assert meaning(built(builder, shuffled)) == meaning(built(builder, said))


def related(a: Said, b: Said) -> bool:
    return a.prompt == b.prompt or shared(a.full, b.full) > min(len(a.prompt), len(b.prompt))


def meaning(trajectory: Trajectory) -> object:
    """A trajectory without its indexes."""

    def spelled(index: int) -> tuple[object, ...]:
        return tuple(
            (
                tuple(tokens_of(node.tokens)),
                node.logprobs,
                None if node.call is None else trajectory.calls[node.call].call_id,
                node.masked,
            )
            for node in (trajectory.nodes[i] for i in path(trajectory, index))
        )

    traces = {
        (trace.trace_id, spelled(trace.leaf), tuple(spelled(node) for node in trace.trains), trace.kind)
        for trace in trajectory.traces
    }
    calls = {(call.call_id, call.parent) for call in trajectory.calls}
    return (
        sorted(map(repr, (spelled(i) for i in range(len(trajectory.nodes))))),
        traces,
        calls,
        trajectory.stats.masked_tokens,
    )
