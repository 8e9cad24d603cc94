"""Trajectories of any shape for properties: token trees, built by hand, whose traces part them as `prefix_merging` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from polar.trainer.groups import Group
from topics.types.completion import PolicySpan, Sampling
from topics.types.session import Status
from topics.types.tokens import count, pack_ids, pack_logprobs, unpack_ids
from topics.types.trajectory import ROOT, Call, Node, Stats, Trace, Trajectory, path

REWARDS = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0]), st.floats(-4, 4, width=32))
ONE = st.just(1.0)
MIXED = st.sampled_from([None, 1.0, 0.5])
"""Temperatures of calls, all alike or not; only prime-rl has a place for several in a batch."""
VERSIONS = st.one_of(st.none(), st.integers(0, 6))


@st.composite
def trees(
    draw: st.DrawFn,
    task_id: str = "t",
    index: int = 0,
    samples: int = 1,
    rewards: st.SearchStrategy[float | None] = REWARDS,
    versions: st.SearchStrategy[int | None] = VERSIONS,
    *,
    updated: bool = False,
    temperatures: st.SearchStrategy[float | None] = ONE,
) -> Trajectory:
    """A prompt, and below it up to eight nodes that were read or sampled; some sampled runs lie in two nodes, some are masked.

    `updated`: weights may have changed within an answer.
    """
    ids = iter(range(10_000))
    nodes: list[Node] = []
    calls: list[Call] = []

    def add(parent: int, *, sampled: bool, masked: bool = False, call: int | None = None) -> None:
        size = draw(st.integers(1, 3))
        tokens = pack_ids([next(ids) for _ in range(size)])
        if not sampled:
            nodes.append(Node(parent, tokens))
            return
        if call is None:
            call = len(calls)
            name = f"{task_id}.{index}.c{call}"
            version = draw(versions)
            sampling = Sampling(temperature=draw(temperatures))
            made = (name, "main", "answered", "openai_chat", call, call + 1)
            calls.append(Call(*made, policy_version=version, publication=publication_of(version), sampling=sampling))
        logprobs = pack_logprobs([-draw(st.integers(1, 64)) / 16 for _ in range(size)])
        nodes.append(Node(parent, tokens, logprobs, call, "why" if masked else None))

    add(ROOT, sampled=False)
    for number in range(1, draw(st.integers(1, 8)) + 1):
        parent = draw(st.integers(0, number - 1))
        kind = draw(st.sampled_from(["read", "sampled", "sampled", "rest", "masked"]))
        # A call has one answer: at most one child continues it.
        answered = {node.call for node in nodes if node.parent == parent}
        split = nodes[parent].call if kind == "rest" and nodes[parent].call not in answered else None
        add(parent, sampled=kind != "read", masked=kind == "masked", call=split)
    if updated:
        calls = [draw(spanned(call, _sampled(nodes, number))) for number, call in enumerate(calls)]
    return built(f"{task_id}.{index}", nodes, calls, reward=draw(rewards), samples=samples)


@st.composite
def spanned(draw: st.DrawFn, call: Call, tokens: int) -> Call:
    """The call, under which weights may have changed, but for one whose version nobody knows."""
    edges = sorted(draw(st.sets(st.integers(1, tokens - 1), max_size=3))) if tokens > 1 else []
    if call.policy_version is None or not edges:
        return call
    versions = st.integers(0, 6)
    spans = [PolicySpan(draw(versions), start, end) for start, end in pairwise([0, *edges, tokens])]
    spans = [msgspec.structs.replace(span, publication=publication_of(span.version)) for span in spans]
    first = spans[0]
    return msgspec.structs.replace(
        call, policy_version=first.version, publication=first.publication, policy_spans=spans
    )


def publication_of(version: int | None) -> int | None:
    """In these trees each version was published once, there."""
    return None if version is None else 10 * version


def _sampled(nodes: Sequence[Node], call: int) -> int:
    """Tokens of a call, along its longest way down."""
    ends: list[int] = []
    for node in nodes:
        above = ends[node.parent] if node.parent != ROOT and nodes[node.parent].call == call else 0
        ends.append(above + count(node.tokens) if node.call == call else 0)
    return max(ends)


def versions_of(trajectory: Trajectory) -> dict[int, int | None]:
    """By trained token, each of which is another in these trees: its version, looked up token by token."""
    found = {}
    for index in {at for trace in trajectory.traces for at in trace.trains}:
        number = trajectory.nodes[index].call
        assert number is not None
        call = trajectory.calls[number]
        above = 0
        parent = trajectory.nodes[index].parent
        while parent != ROOT and trajectory.nodes[parent].call == number:
            above += count(trajectory.nodes[parent].tokens)
            parent = trajectory.nodes[parent].parent
        for at, token in enumerate(unpack_ids(trajectory.nodes[index].tokens).tolist(), above):
            told = [span.version for span in call.policy_spans if span.start <= at < span.end]
            found[token] = told[0] if told else call.policy_version
    return found


def built(
    session_id: str, nodes: Sequence[Node], calls: Sequence[Call], *, reward: float | None, samples: int = 1
) -> Trajectory:
    """Traces of all leaves, longest first; a sampled node is trained in the first that holds it."""
    task_id, _, index = session_id.rpartition(".")
    draft = Trajectory(
        session_id, task_id, int(index), samples, 1, Status.COMPLETED, "prefix_merging", "shell",
        reward=reward, nodes=list(nodes), calls=list(calls),
    )  # fmt: skip

    def length(leaf: int) -> int:
        return sum(count(nodes[node].tokens) for node in path(draft, leaf))

    seen: set[int] = set()
    traces = []
    leaves = {*range(len(nodes))} - {node.parent for node in nodes}
    for leaf in sorted(leaves, key=lambda leaf: (-length(leaf), leaf)):
        trains = [
            at for at in path(draft, leaf) if at not in seen and nodes[at].call is not None and not nodes[at].masked
        ]
        seen |= {*path(draft, leaf)}
        traces.append(Trace(f"{session_id}/{leaf}", leaf, trains, reward=reward))
    return msgspec.structs.replace(draft, traces=traces, stats=tallied(draft, traces))


def tallied(trajectory: Trajectory, traces: Sequence[Trace]) -> Stats:
    sampled = [node for node in trajectory.nodes if node.call is not None]
    masked: Counter[str] = Counter()
    for node in sampled:
        if node.masked is not None:
            masked[node.masked] += count(node.tokens)
    return Stats(
        traces=len(traces),
        tokens=sum(count(node.tokens) for node in trajectory.nodes),
        sampled_tokens=sum(count(node.tokens) for node in sampled),
        trainable_tokens=sum(count(trajectory.nodes[at].tokens) for trace in traces for at in trace.trains),
        masked_tokens=dict(masked),
    )


@st.composite
def groups(
    draw: st.DrawFn,
    rewards: st.SearchStrategy[float | None] = REWARDS,
    versions: st.SearchStrategy[int | None] = VERSIONS,
    *,
    updated: bool = False,
    temperatures: st.SearchStrategy[float | None] = ONE,
) -> Group:
    """Of one to four samples."""
    samples = draw(st.integers(1, 4))
    options: dict[str, Any] = {"updated": updated, "temperatures": temperatures}
    return Group("t", [draw(trees("t", index, samples, rewards, versions, **options)) for index in range(samples)])


def trained_tokens(trajectory: Trajectory) -> list[int]:
    """Ids of the trained tokens, each as often as it is trained, ascending."""
    expanded = trajectory.expanded()
    return sorted(np.concatenate([one.token_ids[one.loss_mask == 1] for one in expanded]).tolist()) if expanded else []


def rewarded_tokens(group: Group) -> list[int]:
    """Ids of the trained tokens of all sessions that have a reward, ascending."""
    return sorted(token for one in group.trajectories if one.reward is not None for token in trained_tokens(one))
