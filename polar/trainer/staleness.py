"""A rule that limits how many policy versions a token may be behind the trainer's weights.

    for group in consumer.groups(Staleness(lambda: version, limit=2, drop="token")):

Invariant: a group that passes has no trained token more than `limit` versions old, and everything left out is counted. The proxy records
which version sampled a token (`span.policy_version`); this module only compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec

from polar.trainer.groups import Group, trained
from topics.types.errors import InputError
from topics.types.tokens import WIDTH, count
from topics.types.trajectory import ROOT, Node, Trace, Trajectory

STALE = "stale"
UNKNOWN_VERSION = "unknown_version"


class StaleRun(NamedTuple):
    """Tokens `[start, end)` of a node that are too old."""

    node: int
    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class Staleness:
    """A rule. Reasons: `stale_group`, `stale_sample`, `stale_token`; `unknown_version_…` if no known version is too old."""

    current: Callable[[], int]
    """Returns the trainer's version; called for each group."""
    limit: int
    """How many versions a token may be behind; 0: none."""
    drop: Literal["group", "sample", "token"] = "group"
    """The unit that is dropped with a stale token. `group`: its group. `sample`: its sample, also from the baseline. `token`: only its run
    of stale tokens, which isn't trained, while the sample's reward stays in the baseline. A group without a trainable token is dropped.
    Tokens of traces without a reward, in a group with rewards, aren't trained, so their age doesn't matter."""
    unknown: Literal["stale", "fresh"] = "stale"
    """How to treat a token of unknown version: sampled while weights changed, or before any version was published."""

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise InputError("limit", self.limit, "must be 0 or more versions")

    def __call__(self, group: Group, counts: Counter[str]) -> Group | None:
        oldest = self.current() - self.limit
        by_reward = any(reward is not None for reward in group.rewards)
        found = [self._too_old(one, trained(one, by_reward=by_reward), oldest) for one in group.trajectories]
        if not any(found):
            return group
        if self.drop == "group":
            counts[f"{_worst(found)}_group"] += 1
            return None
        kept = [self._kept(*one, counts) for one in zip(group.trajectories, found, strict=True)]
        left = [trajectory for trajectory in kept if trajectory is not None]
        if not any(trained(trajectory, by_reward=by_reward) for trajectory in left):
            counts[f"{_worst(found)}_group"] += 1
            return None
        return msgspec.structs.replace(group, trajectories=left)

    def _kept(self, trajectory: Trajectory, runs: Sequence[StaleRun], counts: Counter[str]) -> Trajectory | None:
        if not runs:
            return trajectory
        if self.drop == "sample":
            counts[f"{_worst([runs])}_sample"] += 1
            return None
        for run in runs:
            counts[f"{run.reason}_token"] += run.end - run.start
        return masked(trajectory, runs)

    def _too_old(self, trajectory: Trajectory, traces: Sequence[Trace], oldest: int) -> list[StaleRun]:
        """The runs of stale tokens that these traces train."""
        above = _sampled_above(trajectory)
        runs = []
        for index in sorted({node for trace in traces for node in trace.trains}):
            node = trajectory.nodes[index]
            assert node.call is not None, "a trained node has a call"
            first = above[index]
            for version, start, end in trajectory.calls[node.call].versions(first, first + count(node.tokens)):
                reason = self._reason(version, oldest)
                if reason is not None:
                    runs.append(StaleRun(index, start - first, end - first, reason))
        return runs

    def _reason(self, version: int | None, oldest: int) -> str | None:
        if version is None:
            return UNKNOWN_VERSION if self.unknown == "stale" else None
        return STALE if version < oldest else None


def masked(trajectory: Trajectory, runs: Sequence[StaleRun]) -> Trajectory:
    """The trajectory with these runs, in ascending order, masked: each becomes a node of its own with its reason."""
    replace = msgspec.structs.replace
    by_reason = Counter(trajectory.stats.masked_tokens)
    of_node: dict[int, list[StaleRun]] = {}
    for run in runs:
        by_reason[run.reason] += run.end - run.start
        of_node.setdefault(run.node, []).append(run)
    newly = by_reason.total() - sum(trajectory.stats.masked_tokens.values())
    nodes: list[Node] = []
    became: list[range] = []
    """By old node index: the new indexes."""
    for node in trajectory.nodes:
        parent = node.parent if node.parent == ROOT else became[node.parent][-1]
        parts = _cut(node, of_node.get(len(became), ()))
        became.append(range(len(nodes), len(nodes) + len(parts)))
        nodes.extend(replace(part, parent=at) for at, part in zip((parent, *became[-1]), parts, strict=False))
    return replace(
        trajectory,
        nodes=nodes,
        traces=[
            replace(
                trace,
                leaf=became[trace.leaf][-1],
                trains=[new for old in trace.trains for new in became[old] if nodes[new].masked is None],
            )
            for trace in trajectory.traces
        ],
        stats=replace(
            trajectory.stats,
            trainable_tokens=trajectory.stats.trainable_tokens - newly,
            masked_tokens=dict(by_reason),
        ),
    )


def _cut(node: Node, runs: Sequence[StaleRun]) -> list[Node]:
    """The node cut into parts: the runs, each with its reason, and the tokens between them."""
    reasons: dict[int, str | None] = {}
    for run in runs:
        reasons[run.start] = run.reason
        reasons.setdefault(run.end, None)
    starts = sorted({0, *reasons} - {count(node.tokens)})
    return [
        msgspec.structs.replace(
            node,
            tokens=node.tokens[start * WIDTH : end * WIDTH],
            logprobs=None if node.logprobs is None else node.logprobs[start * WIDTH : end * WIDTH],
            masked=reasons.get(start) or node.masked,
        )
        for start, end in pairwise([*starts, count(node.tokens)])
    ]


def _sampled_above(trajectory: Trajectory) -> list[int]:
    """By node: how many tokens its call sampled before this node. The nodes of one call follow one another."""
    found: list[int] = []
    for node in trajectory.nodes:
        above = None if node.parent == ROOT else trajectory.nodes[node.parent]
        continues = above is not None and node.call is not None and above.call == node.call
        found.append(found[node.parent] + count(above.tokens) if above is not None and continues else 0)
    return found


def _worst(found: Collection[Sequence[StaleRun]]) -> str:
    """The reason to count: stale if any run is, otherwise unknown version."""
    return STALE if any(run.reason == STALE for runs in found for run in runs) else UNKNOWN_VERSION
