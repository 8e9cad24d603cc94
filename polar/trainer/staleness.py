"""How far behind the trainer's weights a token may be, by the policy version that sampled it.

    for group in consumer.groups(Staleness(lambda: version, limit=2, drop="token")):

Invariant: what leaves has no trained token that is more than `limit` versions old, and what was left out is counted. Which version
sampled a token is the proxy's word (`span.policy_version`); this only compares.
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


class Run(NamedTuple):
    """Tokens `[start, end)` of a node that are too old."""

    node: int
    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class Staleness:
    """A rule. Reasons `stale_group`, `_sample` or `_token`, and `unknown_version_…` where only that is the matter."""

    current: Callable[[], int]
    """The trainer's version, asked for each group."""
    limit: int
    """So many versions may a token be behind; 0: none."""
    drop: Literal["group", "sample", "token"] = "group"
    """What a stale token takes with it: its group; its sample, out of the baseline, too; or its run of tokens alone, which isn't
    trained then, while the sample's reward stays in the baseline. A group with nothing left to train is dropped. Tokens without a
    reward, in a group that has any, are trained by nobody: how old they are is all the same."""
    unknown: Literal["stale", "fresh"] = "stale"
    """What a token is whose version nobody knows: sampled while weights changed, or where no version was ever published."""

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

    def _kept(self, trajectory: Trajectory, runs: Sequence[Run], counts: Counter[str]) -> Trajectory | None:
        if not runs:
            return trajectory
        if self.drop == "sample":
            counts[f"{_worst([runs])}_sample"] += 1
            return None
        for run in runs:
            counts[f"{run.reason}_token"] += run.end - run.start
        return masked(trajectory, runs)

    def _too_old(self, trajectory: Trajectory, traces: Sequence[Trace], oldest: int) -> list[Run]:
        """Runs of tokens that these traces train."""
        above = _sampled_above(trajectory)
        runs = []
        for index in sorted({node for trace in traces for node in trace.trains}):
            node = trajectory.nodes[index]
            assert node.call is not None, "a trained node has a call"
            first = above[index]
            for version, start, end in trajectory.calls[node.call].versions(first, first + count(node.tokens)):
                reason = self._reason(version, oldest)
                if reason is not None:
                    runs.append(Run(index, start - first, end - first, reason))
        return runs

    def _reason(self, version: int | None, oldest: int) -> str | None:
        if version is None:
            return UNKNOWN_VERSION if self.unknown == "stale" else None
        return STALE if version < oldest else None


def masked(trajectory: Trajectory, runs: Sequence[Run]) -> Trajectory:
    """The same without these runs, which ascend: each is a node of its own with its reason. All that reads traces takes it as any other."""
    replace = msgspec.structs.replace
    by_reason = Counter(trajectory.stats.masked_tokens)
    of_node: dict[int, list[Run]] = {}
    for run in runs:
        by_reason[run.reason] += run.end - run.start
        of_node.setdefault(run.node, []).append(run)
    newly = by_reason.total() - sum(trajectory.stats.masked_tokens.values())
    nodes: list[Node] = []
    became: list[range] = []
    """By old index: the new ones."""
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


def _cut(node: Node, runs: Sequence[Run]) -> list[Node]:
    """The node as parts in its order: the runs, each with its reason, and what lies between them."""
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
    """By node: how many tokens its call sampled before the node's: the nodes of one call follow one another."""
    found: list[int] = []
    for node in trajectory.nodes:
        above = None if node.parent == ROOT else trajectory.nodes[node.parent]
        goes_on = above is not None and node.call is not None and above.call == node.call
        found.append(found[node.parent] + count(above.tokens) if above is not None and goes_on else 0)
    return found


def _worst(found: Collection[Sequence[Run]]) -> str:
    """What a whole is counted as: stale where a version says so, else unknown."""
    return STALE if any(run.reason == STALE for runs in found for run in runs) else UNKNOWN_VERSION
