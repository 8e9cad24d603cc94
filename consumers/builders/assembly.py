"""A trajectory from a token tree and the traces that a builder chose.

Owns the count of everything: `sampled_tokens` is `trainable_tokens` plus all of `masked_tokens`. Rewards are the evaluator's: the
session's on each trace, a call's on its call, whichever the builder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

from consumers.builders.base import BuiltFrom
from consumers.builders.tree import TokenTree
from polar.types.completion import CallOutcome, Completion
from polar.types.tokens import count
from polar.types.trajectory import Call, Stats, Trace, Trajectory


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


def trajectory(session: BuiltFrom, tree: TokenTree, traces: Sequence[Trace]) -> Trajectory:
    """The session's trajectory; what isn't in the calls is the Build's."""
    build = session.build
    rewards = build.call_rewards or {}
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
        nodes=tree.nodes,
        calls=[_call(tree, index, rewards.get(call.call_id)) for index, call in enumerate(tree.calls)],
        traces=list(traces),
        stats=_stats(session, tree, traces),
        accounting=build.accounting,
        artifacts=build.artifacts,
        metadata=build.metadata,
        mode=build.mode,
    )


def _call(tree: TokenTree, index: int, reward: float | None) -> Call:
    call = tree.calls[index]
    return Call(
        call_id=call.call_id,
        kind=call.kind,
        outcome=call.outcome,
        dialect=call.dialect,
        received_at=call.received_at,
        completed_at=call.completed_at,
        prompt_tokens=call.prompt.shared + count(call.prompt.rest),
        sampled_tokens=_sampled(call),
        parent=tree.parents[index],
        branch=tree.branches[index],
        finish_reason=call.finish_reason,
        policy_version=call.policy_version,
        policy_spans=call.policy_spans,
        realigned=call.realigned,
        sampling=call.sampling,
        model_served=call.model_served,
        reward=reward,
    )


def _sampled(call: Completion) -> int:
    return count(call.sampled) if call.outcome is CallOutcome.ANSWERED else 0


def _stats(session: BuiltFrom, tree: TokenTree, traces: Sequence[Trace]) -> Stats:
    # By call and not by node: a call without a place in the tree has sampled tokens too.
    by_reason: Counter[StrEnum | None] = Counter()
    for call, masked in zip(tree.calls, tree.masked, strict=True):
        by_reason[masked] += _sampled(call)
    return Stats(
        calls=len(tree.calls),
        answered=sum(call.outcome is CallOutcome.ANSWERED for call in tree.calls),
        traces=len(traces),
        tokens=sum(count(node.tokens) for node in tree.nodes),
        sampled_tokens=sum(by_reason.values()),
        trainable_tokens=by_reason[None],
        masked_tokens=_told(by_reason.items()),
        branches=_told(Counter(tree.branches).items()),
        drift=_told(tree.drift.items()),
        late_calls=session.late_calls,
    )


def _told(counts: Iterable[tuple[StrEnum | None, int]]) -> dict[str, int]:
    """Counts by reason code, in its order, without zeros and without what has no reason."""
    return dict(sorted((str(code), n) for code, n in counts if code is not None and n))
