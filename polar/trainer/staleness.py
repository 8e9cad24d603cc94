"""A rule that limits how many policy versions a token may be behind the trainer's weights.

    publication = await pause.publish(version)
    for group in consumer.groups(Staleness(lambda: publication, limit=2, drop="token")):

Invariant: a group that passes has no trained token that is more than `limit` versions old, newer than the trainer, or of a line that a
rollback has abandoned; everything left out is counted. The proxy records which weights sampled a token (`span.policy_version`,
`span.publication`); this module only compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec

from polar.trainer.groups import Group, trained
from topics.fleet import Publication
from topics.types.errors import InputError
from topics.types.tokens import WIDTH, count
from topics.types.trajectory import ROOT, Node, SameWeights, Trace, Trajectory, answer_offsets

STALE = "stale"
ABANDONED = "abandoned"
NEWER = "newer"
UNKNOWN_VERSION = "unknown_version"
REASONS = (STALE, ABANDONED, NEWER, UNKNOWN_VERSION)
"""In the order in which they count for a sample or a group."""


class StaleRun(NamedTuple):
    """Tokens `[start, end)` of a node that aren't trained."""

    node: int
    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class Staleness:
    """A rule. Counts are named by reason and unit, as `stale_group`, `newer_sample`, `abandoned_token`. Of several reasons in a sample or a
    group the first of `REASONS` counts.

    `stale`: more than `limit` versions old. `abandoned`: sampled by weights that a rollback has undone. `newer`: sampled by weights that
    the trainer doesn't have yet. `unknown_version`: see `unknown`.
    """

    current: Callable[[], int | Publication]
    """Returns the trainer's version, or the publication of its weights (`polar.fleet.Fleet.publish` returns one); called for each group.

    A number can't tell weights from others of the same number that a rollback has undone; a publication can. Return a new version before
    its weights are published: tokens that they sample until then count as `newer`."""
    limit: int
    """How many versions a token may be behind; 0: none."""
    drop: Literal["group", "sample", "token"] = "group"
    """The unit that is dropped with such a token. `group`: its group. `sample`: its sample, also from the baseline. `token`: only its run
    of such tokens, which isn't trained, while the sample's reward stays in the baseline. A group without a trainable token is dropped.
    Tokens of traces without a reward, in a group with rewards, aren't trained, so their age doesn't matter."""
    unknown: Literal["stale", "fresh"] = "stale"
    """How to treat a token of unknown weights: sampled while weights changed, or before any version was published; or of a number that
    names two weights because of a rollback, without a publication."""

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise InputError("limit", self.limit, "must be 0 or more versions")

    def __call__(self, group: Group, counts: Counter[str]) -> Group | None:
        current = self.current()
        by_reward = any(reward is not None for reward in group.rewards)
        found = [self._runs(one, trained(one, by_reward=by_reward), current) for one in group.trajectories]
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

    def _runs(self, trajectory: Trajectory, traces: Sequence[Trace], current: int | Publication) -> list[StaleRun]:
        """The runs of tokens that these traces train and must not."""
        offsets = answer_offsets(trajectory.nodes)
        runs = []
        for index in sorted({node for trace in traces for node in trace.trains}):
            node = trajectory.nodes[index]
            first = offsets[index]
            assert node.call is not None, "a trained node has a call"
            assert first is not None, "its call sampled it"
            call = trajectory.calls[node.call]
            for weights in call.weights(first, first + count(node.tokens)):
                reason = self._reason(weights, call.engine, current)
                if reason is not None:
                    runs.append(StaleRun(index, weights.start - first, weights.end - first, reason))
        return runs

    def _reason(self, weights: SameWeights, engine: str, current: int | Publication) -> str | None:
        if weights.version is None:
            return self._unknown
        if not isinstance(current, Publication):
            return self._by_number(weights.version, current)
        by_number = self._by_number(weights.version, _version(current))
        if current.engine not in (None, engine):
            return by_number
        if weights.publication is None:
            return by_number or (self._unknown if current.has_reused(weights.version, engine) else None)
        if current.has_abandoned(weights.version, weights.publication, engine):
            return ABANDONED
        if weights.publication > current.offset and weights.version != current.version:
            return NEWER
        return by_number

    def _by_number(self, version: int, current: int) -> str | None:
        if version > current:
            return NEWER
        return STALE if version < current - self.limit else None

    @property
    def _unknown(self) -> str | None:
        return UNKNOWN_VERSION if self.unknown == "stale" else None


def _version(current: Publication) -> int:
    """Raises InputError for a publication of unknown weights."""
    if current.version is None:
        raise InputError("current", current, "is a publication of unknown weights; return one that has a version")
    return current.version


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


def _worst(found: Collection[Sequence[StaleRun]]) -> str:
    """The reason to count for these runs together."""
    return min((run.reason for runs in found for run in runs), key=REASONS.index)
