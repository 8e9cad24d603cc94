"""How far behind the trainer's weights a token may be, by the policy version that sampled it.

    for group in consumer.groups(Staleness(lambda: version, limit=2, drop="token")):

Invariant: what leaves has no trained token that is more than `limit` versions old, and what was left out is counted. Which version
sampled a token is the proxy's word (`span.call.policy_version`); this only compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from polar.trainer.groups import Group
from polar.trainer.versions import UNKNOWN, versions
from polar.types.errors import InputError
from polar.types.tokens import count
from polar.types.trajectory import Trajectory

STALE = "stale"
UNKNOWN_VERSION = "unknown_version"


@dataclass(frozen=True)
class Staleness:
    """A rule. Reasons `stale_group`, `_sample` or `_token`, and `unknown_version_…` where only that is the matter."""

    current: Callable[[], int]
    """The trainer's version, asked for each group."""
    limit: int
    """So many versions may a token be behind; 0: none."""
    drop: Literal["group", "sample", "token"] = "group"
    """What a stale token takes with it: its group; its sample, out of the baseline, too; or its run of tokens alone, which isn't
    trained then, while the sample's reward stays in the baseline. A group with nothing left to train is dropped."""
    unknown: Literal["stale", "fresh"] = "stale"
    """What a token is whose version nobody knows: sampled while weights changed, or where no version was ever published."""

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise InputError("limit", self.limit, "must be 0 or more versions")

    def __call__(self, group: Group, counts: Counter[str]) -> Group | None:
        oldest = self.current() - self.limit
        found = [self._reasons(trajectory, oldest) for trajectory in group.trajectories]
        if not any(found):
            return group
        if self.drop == "group":
            counts[f"{_worst(found)}_group"] += 1
            return None
        kept = [self._kept(*one, counts) for one in zip(group.trajectories, found, strict=True)]
        left = [trajectory for trajectory in kept if trajectory is not None]
        if not any(trajectory.stats.trainable_tokens for trajectory in left):
            counts[f"{_worst(found)}_group"] += 1
            return None
        return msgspec.structs.replace(group, trajectories=left)

    def _kept(self, trajectory: Trajectory, reasons: Mapping[int, str], counts: Counter[str]) -> Trajectory | None:
        if not reasons:
            return trajectory
        if self.drop == "sample":
            counts[f"{_worst([reasons])}_sample"] += 1
            return None
        for index, reason in reasons.items():
            counts[f"{reason}_token"] += count(trajectory.nodes[index].tokens)
        return masked(trajectory, reasons)

    def _reasons(self, trajectory: Trajectory, oldest: int) -> dict[int, str]:
        """By index of a trained node: why it is too old."""
        reasons = {}
        for index in sorted({node for trace in trajectory.traces for node in trace.trains}):
            found = versions(trajectory, index)
            if ((found < oldest) & (found != UNKNOWN)).any():
                reasons[index] = STALE
            elif self.unknown == "stale" and (found == UNKNOWN).any():
                reasons[index] = UNKNOWN_VERSION
        return reasons


def masked(trajectory: Trajectory, reasons: Mapping[int, str]) -> Trajectory:
    """The same without these trained nodes: by index, with the reason that each gets. All that reads traces takes it as any other."""
    replace = msgspec.structs.replace
    by_reason = Counter(trajectory.stats.masked_tokens)
    for index, reason in reasons.items():
        by_reason[reason] += count(trajectory.nodes[index].tokens)
    newly = by_reason.total() - sum(trajectory.stats.masked_tokens.values())
    return replace(
        trajectory,
        nodes=[replace(node, masked=reasons.get(index, node.masked)) for index, node in enumerate(trajectory.nodes)],
        traces=[
            replace(trace, trains=[index for index in trace.trains if index not in reasons])
            for trace in trajectory.traces
        ],
        stats=replace(
            trajectory.stats,
            trainable_tokens=trajectory.stats.trainable_tokens - newly,
            masked_tokens=dict(by_reason),
        ),
    )


def _worst(found: Collection[Mapping[int, str]]) -> str:
    """What a whole is counted as: stale where a version says so, else unknown."""
    return STALE if any(STALE in reasons.values() for reasons in found) else UNKNOWN_VERSION
