"""Any tree of calls, in any order in which its answers could have come, its deltas against any earlier call.

The reference is the definition written out token by token and prompt by prompt: no runs, no cuts, no deltas. That each token is trained as
it was sampled, and once, is shown by `tests/faithfulness`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.builders.base import Builder, BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.builders.prefix_merging import PrefixMerging
from consumers.token_tree.divergence import END_TOKENS
from consumers.token_tree.tree import grow
from tests.consumers.token_tree.transcripts import build_record, completion, delta, tokens_of
from topics.types.completion import CallOutcome, Completion
from topics.types.tokens import count
from topics.types.trajectory import Trajectory, expand, path

Tokens = tuple[int, ...]
LEAF: dict[str, object] = {"rewards": "leaf"}
FILTERS: dict[str, object] = {
    "kinds": ["main", "title"],
    "drop_truncated": True,
    "max_tokens": 9,
    "min_trainable_tokens": 2,
}
BUILDERS: list[Builder] = [
    PrefixMerging(),
    PerRequest(),
    PrefixMerging(**LEAF, filters=FILTERS),
    PerRequest(**LEAF, filters=FILTERS),
]
MAIN_CHAIN: list[Builder] = [PrefixMerging(rewards="main_chain"), PerRequest(rewards="main_chain")]


@dataclass(frozen=True)
class FullCall:
    """A call in full: what the engine read and sampled."""

    call_id: str
    prompt: Tokens
    sampled: Tokens
    kind: str = "main"
    thread: str | None = None
    disowned: bool = False
    broken: bool = False
    """Its logprobs don't fit."""
    finish_reason: str = "stop"
    asked: int = 0
    took: int = 0
    realigned: int = 0
    outcome: CallOutcome = CallOutcome.ANSWERED

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
def conversations(draw: st.DrawFn) -> list[FullCall]:
    """Calls in log order: each goes on from an earlier one's end, leaves it somewhere, strips its answer, ends its turn otherwise, asks
    the same again, or starts anew, as a thread of its own, too."""
    history: list[FullCall] = []
    for index in range(draw(st.integers(0, 9))):
        prompt: Tokens = draw(tokens) or (0,)
        outcome = draw(st.sampled_from([*[CallOutcome.ANSWERED] * 8, CallOutcome.FAILED, CallOutcome.ABANDONED]))
        if history and draw(st.integers(0, 5)) > 0:
            onto = draw(st.sampled_from(history))
            prompt = draw(st.sampled_from([goes_on, goes_on, asks_again, leaves, strips, ends_otherwise]))(
                draw, onto
            ) or (0,)
        history.append(
            FullCall(
                f"c{index}",
                prompt,
                draw(tokens) if outcome is CallOutcome.ANSWERED else (),
                kind=draw(st.sampled_from(["main", "main", "subagent", "compaction", "title"])),
                thread=draw(st.sampled_from([None, None, "x", "y"])),
                disowned=draw(st.integers(0, 7)) == 0,
                broken=draw(st.integers(0, 7)) == 0,
                finish_reason=draw(st.sampled_from(["stop", "stop", "length"])),
                asked=draw(st.integers(0, 20)),
                took=draw(st.integers(0, 5)),
                realigned=draw(st.sampled_from([0, 0, 2])),
                outcome=outcome,
            )
        )
    return history


def goes_on(draw: st.DrawFn, onto: FullCall) -> Tokens:
    return onto.full + draw(tokens)


def asks_again(draw: st.DrawFn, onto: FullCall) -> Tokens:
    return onto.prompt


def leaves(draw: st.DrawFn, onto: FullCall) -> Tokens:
    return onto.full[: draw(st.integers(0, len(onto.full)))] + draw(tokens)


def strips(draw: st.DrawFn, onto: FullCall) -> Tokens:
    return onto.prompt + onto.sampled[draw(st.integers(0, len(onto.sampled))) :] + draw(tokens)


def ends_otherwise(draw: st.DrawFn, onto: FullCall) -> Tokens:
    return onto.full[:-1] + draw(tokens)


def records(history: list[FullCall], bases: list[int | None]) -> list[Completion]:
    """As a proxy might have written them: `bases[i]` chooses the base of call i among those before it."""
    written = []
    for index, call in enumerate(history):
        choice = bases[index]
        base = history[choice % index] if choice is not None and index else None
        written.append(
            completion(
                call.call_id,
                delta(list(call.prompt), base.call_id if base else None, list(base.full) if base else None),
                list(call.sampled),
                kind=call.kind,
                lineage=call.lineage,
                finish_reason=call.finish_reason,
                received_at=call.asked,
                completed_at=call.asked + call.took,
                realigned=call.realigned,
                outcome=call.outcome,
                **({"logprobs": b""} if call.broken else {}),
            )
        )
    return written


def built(builder: Builder, history: list[FullCall], bases: list[int | None] | None = None) -> Trajectory:
    disowned = frozenset(call.call_id for call in history if call.disowned)
    return builder.build(BuiltFrom(build_record(), records(history, bases or [0] * len(history)), disowned))


choices = st.lists(st.none() | st.integers(0, 9), min_size=9, max_size=9)


@settings(max_examples=150, deadline=None)
@given(conversations(), choices)
def test_how_deltas_were_written_changes_nothing(history: list[FullCall], bases: list[int | None]) -> None:
    for builder in BUILDERS:
        assert built(builder, history, bases) == built(builder, history, [None] * 9)


@settings(max_examples=150, deadline=None)
@given(conversations())
def test_a_parent_is_the_longest_call_before_that_the_prompt_extends(history: list[FullCall]) -> None:
    trajectory = built(PrefixMerging(), history)
    for index in range(len(history)):
        assert trajectory.calls[index].parent == reference_parent(history, index)
        if history[index].outcome is CallOutcome.ANSWERED and trajectory.calls[index].branch is None:
            assert trajectory.calls[index].parent is not None


def reference_parent(history: list[FullCall], index: int) -> str | None:
    call = history[index]
    fits = [
        (len(other.full), other.lineage == call.lineage, i, other.call_id)
        for i, other in enumerate(history[:index])
        if other.sampled and not other.disowned and call.prompt[: len(other.full)] == other.full
    ]
    return max(fits)[3] if fits else None


@settings(max_examples=150, deadline=None)
@given(conversations(), choices)
def test_the_tree_holds_each_token_once(history: list[FullCall], bases: list[int | None]) -> None:
    tree = grow(records(history, bases), frozenset(call.call_id for call in history if call.disowned))
    assert sum(count(node.tokens) for node in tree.nodes) == reference_size(history)


def reference_size(history: list[FullCall]) -> int:
    """Tokens of a trie of (token, who sampled it), each prompt following its parent's end and then the longest path there is."""
    paths: list[tuple[tuple[int, str | None], ...]] = []
    ends: dict[str, tuple[tuple[int, str | None], ...]] = {}
    for index, call in sorted(enumerate(history), key=lambda item: (len(item[1].prompt), item[0])):
        if not call.sampled:
            continue
        parent = reference_parent(history, index)
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
    history: list[FullCall], random: Random
) -> None:
    """Unrelated: neither goes on from the other's prompt, nor holds what it sampled."""
    for builder in BUILDERS:
        assert meaning(built(builder, shuffled(history, related, random))) == meaning(built(builder, history))


@settings(max_examples=150, deadline=None)
@given(conversations(), st.randoms(use_true_random=False))
def test_whom_the_main_chain_credits_does_not_depend_on_the_order_in_which_other_threads_calls_arrive(
    history: list[FullCall], random: Random
) -> None:
    """A thread's own calls, and those that left one another's answers, keep their order: the harness made it."""

    def in_order(a: FullCall, b: FullCall) -> bool:
        return a.thread == b.thread or shared(a.full, b.full) > 0

    for builder in MAIN_CHAIN:
        assert meaning(built(builder, shuffled(history, in_order, random))) == meaning(built(builder, history))


@settings(max_examples=150, deadline=None)
@given(conversations(), choices)
def test_a_reward_target_credits_the_last_main_call_and_none_that_is_no_trace_of_its_chain(
    history: list[FullCall], bases: list[int | None]
) -> None:
    for make in (PrefixMerging, PerRequest):
        everyone, chain, leaf = (built(make(rewards=name), history, bases) for name in ("all", "main_chain", "leaf"))
        trained = [traced(one) for one in (everyone, chain, leaf)]
        assert trained[0] == trained[1] == trained[2], "what is trained is the same"
        assert credited(leaf) <= credited(chain) <= credited(everyone) == trained[0]
        last = max(
            (call for call in history if call.call_id in trained[0]),
            key=lambda call: (call.kind == "main", call.asked, call.call_id),
            default=None,
        )
        assert (last is not None and last.call_id in credited(leaf)) == bool(trained[0])


@settings(max_examples=150, deadline=None)
@given(conversations(), st.sampled_from(["main_chain", "leaf"]), st.integers(1, 3))
def test_where_anything_is_trained_something_takes_the_reward(history: list[FullCall], target: str, least: int) -> None:
    """Also where what would have taken it is too short: else the session counts as usable and nobody can train on it."""
    for make in (PrefixMerging, PerRequest):
        trajectory = built(make(rewards=target, filters={"min_trainable_tokens": least}), history)
        assert bool(credited(trajectory)) == bool(traced(trajectory))


def traced(trajectory: Trajectory) -> set[str]:
    """Ids of the calls that any trace trains."""
    return {span.call.call_id for trace in trajectory.traces for span in expand(trajectory, trace).spans}


def credited(trajectory: Trajectory) -> set[str]:
    """Ids of the calls that a trace with the reward trains."""
    rewarded = [trace for trace in trajectory.traces if trace.reward is not None]
    return {span.call.call_id for trace in rewarded for span in expand(trajectory, trace).spans}


def shuffled(history: list[FullCall], keep: Callable[[FullCall, FullCall], bool], random: Random) -> list[FullCall]:
    """In another order, but that calls of which `keep` is true stay as they were to one another."""
    keys = {call.call_id: random.random() for call in history}
    left, order = list(history), []
    while left:
        free = [c for i, c in enumerate(left) if not any(keep(c, before) for before in left[:i])]
        order.append(min(free, key=lambda call: keys[call.call_id]))
        left.remove(order[-1])
    return order


def related(a: FullCall, b: FullCall) -> bool:
    return shared(a.full, b.full) >= min(len(a.prompt), len(b.prompt)) or is_quoted(a, b) or is_quoted(b, a)


def is_quoted(call: FullCall, by: FullCall) -> bool:
    """Whether a prompt that left it before it was sampled could be told by its answer's end."""
    end, size = call.sampled[-END_TOKENS:], len(by.prompt)
    return len(end) == END_TOKENS and any(by.prompt[at : at + END_TOKENS] == end for at in range(size))


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
        (trace.trace_id, spelled(trace.leaf), tuple(map(spelled, trace.trains)), trace.kind, trace.reward)
        for trace in trajectory.traces
    }
    calls = {(call.call_id, call.parent) for call in trajectory.calls}
    return (
        sorted(map(repr, (spelled(i) for i in range(len(trajectory.nodes))))),
        traces,
        calls,
        trajectory.stats.masked_tokens,
        trajectory.stats.filtered,
    )
