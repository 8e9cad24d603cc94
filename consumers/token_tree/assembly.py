"""A trajectory from a token tree and the traces that a builder chose.

Owns all counts. Invariant: `sampled_tokens` is `trainable_tokens` plus all of `masked_tokens`. Rewards come from the evaluator and don't
depend on the builder: each trace that the task credits has the session's reward, and each call its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from consumers.builders.base import BuiltFrom
from consumers.token_tree.credit import credited
from consumers.token_tree.tree import TokenTree
from topics.completions import Build
from topics.types.building import Options
from topics.types.completion import CallOutcome, Completion
from topics.types.token_tree import FILTERS, Masked
from topics.types.tokens import count
from topics.types.trajectory import Call, Node, Stats, Trace, Trajectory


def trace(session: BuiltFrom, tree: TokenTree, index: int, trains: list[int]) -> Trace:
    """The trace that ends with what call `index` sampled and trains the nodes `trains`. Its id is stable: session and call."""
    call = tree.calls[index]
    return Trace(
        trace_id=f"{session.build.session_id}/{call.call_id}",
        leaf=tree.sampled[index][-1],
        trains=trains,
        kind=call.kind,
        reward=session.build.reward,
        finish_reason=call.finish_reason,
    )


def trained_tokens(tree: TokenTree, made: Trace) -> int:
    return sum(count(tree.nodes[index].tokens) for index in made.trains)


def trajectory(
    session: BuiltFrom,
    tree: TokenTree,
    traces: Iterable[Trace],
    options: Options = Options(),  # noqa: B008 - frozen
) -> Trajectory:
    """The session's trajectory; all that isn't in the calls comes from the Build.

    Leaves out traces that are too short, removes the reward from traces that aren't credited, and masks sampled nodes that no trace
    trains. Raises ValueError if a remaining trace trains a node that isn't sampled, is masked, or is trained by another trace.
    """
    build = session.build
    rewards = build.call_rewards or {}
    kept, short = _by_length(tree, traces, options.filters.min_trainable_tokens)
    nodes = _masked(tree.nodes, kept, short)
    return replace(
        empty(build),
        nodes=nodes,
        calls=[
            call_of(call, tree.media[index], tree.parents[index], tree.branches[index], rewards.get(call.call_id))
            for index, call in enumerate(tree.calls)
        ],
        traces=_credit(tree, kept, options),
        stats=_stats(session, tree, nodes, traces=len(kept), short=len(short)),
    )


def empty(build: Build) -> Trajectory:
    """A trajectory of all that comes from the Build, without calls and traces."""
    return Trajectory(
        session_id=build.session_id,
        task_id=build.task_id,
        sample_index=build.sample_index,
        num_samples=build.num_samples,
        attempt=build.attempt,
        status=build.status,
        builder=build.builder,
        harness=build.harness,
        reward=build.reward,
        error=build.error,
        accounting=build.accounting,
        artifacts=build.artifacts,
        metadata=build.metadata,
        mode=build.mode,
        reward_reason=build.reward_reason,
        run=build.run,
        label=build.label,
    )


def _by_length(tree: TokenTree, traces: Iterable[Trace], least: int) -> tuple[list[Trace], list[Trace]]:
    """The traces that train `least` tokens or more, and the others."""
    kept: list[Trace] = []
    short: list[Trace] = []
    for made in traces:
        (kept if trained_tokens(tree, made) >= least else short).append(made)
    return kept, short


def _masked(nodes: list[Node], kept: Iterable[Trace], short: Iterable[Trace]) -> list[Node]:
    """The nodes; sampled nodes that no trace trains are masked as well."""
    reasons = dict.fromkeys((index for made in short for index in made.trains), Masked.FILTERED_SHORT)
    trained: set[int] = set()
    for index in (index for made in kept for index in made.trains):
        if index in trained or nodes[index].call is None or nodes[index].masked is not None:
            raise ValueError(f"node {index} is trained twice, was not sampled, or is masked ({nodes[index].masked})")
        trained.add(index)
    return [
        node
        if node.call is None or node.masked is not None or index in trained
        else replace(node, masked=reasons.get(index, Masked.NO_TRACE))
        for index, node in enumerate(nodes)
    ]


def _credit(tree: TokenTree, traces: list[Trace], options: Options) -> list[Trace]:
    """The traces; the reward is removed from traces that train no credited call."""
    trained = {call for made in traces for index in made.trains if (call := tree.nodes[index].call) is not None}
    calls = credited(tree, options, trained)
    if calls is None:
        return traces
    return [
        made if any(tree.nodes[index].call in calls for index in made.trains) else replace(made, reward=None)
        for made in traces
    ]


def call_of(call: Completion, media: int, parent: str | None, branch: str | None, reward: float | None = None) -> Call:
    """A call as a trajectory lists it. `media`: how many its prompt has; `parent`: a call id."""
    return Call(
        call_id=call.call_id,
        kind=call.kind,
        outcome=call.outcome,
        dialect=call.dialect,
        received_at=call.received_at,
        completed_at=call.completed_at,
        prompt_tokens=call.prompt.shared + count(call.prompt.rest),
        sampled_tokens=_sampled(call),
        parent=parent,
        branch=branch,
        finish_reason=call.finish_reason,
        policy_version=call.policy_version,
        policy_spans=call.policy_spans,
        realigned=call.realigned,
        sampling=call.sampling,
        model_served=call.model_served,
        reward=reward,
        engine=call.engine,
        logprobs_mode=call.logprobs_mode,
        publication=call.publication,
        prompt_doubt=call.prompt_doubt,
        media=media,
        routed_experts=call.routed_experts,
        sampling_mask=call.sampling_mask,
        uncaptured=call.uncaptured,
        client=call.client,
        error_code=None if call.error is None else call.error.code,
    )


def _sampled(call: Completion) -> int:
    return count(call.sampled) if call.outcome is CallOutcome.ANSWERED else 0


def _stats(session: BuiltFrom, tree: TokenTree, nodes: Sequence[Node], *, traces: int, short: int) -> Stats:
    """`short`: the number of traces that were too short."""
    by_reason: Counter[str | None] = Counter()
    for node in nodes:
        if node.call is not None:
            by_reason[node.masked] += count(node.tokens)
    left_out: Counter[str | None] = Counter({Masked.FILTERED_SHORT: short})
    for call, masked, nodes_of_call in zip(tree.calls, tree.masked, tree.sampled, strict=True):
        if not nodes_of_call:  # a call without a place in the tree may have sampled tokens
            by_reason[masked] += _sampled(call)
        elif masked in FILTERS:
            left_out[masked] += 1
    return Stats(
        calls=len(tree.calls),
        answered=sum(call.outcome is CallOutcome.ANSWERED for call in tree.calls),
        traces=traces,
        tokens=sum(count(node.tokens) for node in nodes),
        sampled_tokens=sum(by_reason.values()),
        trainable_tokens=by_reason[None],
        masked_tokens=_by_code(by_reason.items()),
        branches=_by_code(Counter(tree.branches).items()),
        drift=_by_code(tree.drift.items()),
        late_calls=session.late_calls,
        filtered=_by_code(left_out.items()),
    )


def _by_code(counts: Iterable[tuple[str | None, int]]) -> dict[str, int]:
    """Counts by reason code, sorted, without zeros and without entries that have no code."""
    return dict(sorted((str(code), n) for code, n in counts if code is not None and n))
