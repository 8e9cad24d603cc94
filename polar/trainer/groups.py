"""A group, and rules about which groups are trained: each takes one and gives it on, whole or in part, or drops it and counts why.

    consumer.groups(drop_zero_advantage, Staleness(lambda: version, limit=2), at_least=6, within_s=900)

A rule is any function of this shape. Invariant: what a rule leaves out is counted under a reason code, once. Dropped groups count as
handed out: after a crash they are judged again only where the state is older than they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec

from topics.types.errors import InputError
from topics.types.session import Status
from topics.types.trajectory import Trace, Trajectory


class Group(msgspec.Struct, frozen=True):
    """All samples of one task; those that were there and were kept, where `at_least` or a rule says so."""

    task_id: str
    trajectories: list[Trajectory]
    """By sample index."""

    @property
    def rewards(self) -> list[float | None]:
        """In the order of the trajectories; None where no evaluator gave one: such a sample belongs into no baseline."""
        return [trajectory.reward for trajectory in self.trajectories]

    @property
    def statuses(self) -> list[Status]:
        """In the order of the trajectories."""
        return [trajectory.status for trajectory in self.trajectories]


Rule = Callable[[Group, Counter[str]], Group | None]
"""The group as it is to be trained, or None. What is left out is counted in the Counter, by a reason code."""


@runtime_checkable
class Checked(Protocol):
    """A rule that knows when no group will come any more."""

    def check(self) -> None:
        """Asked a few times a second while groups are waited for, from whichever thread reads; raises what makes waiting vain."""


@dataclass(frozen=True)
class Patience:
    """When a group that isn't whole is handed out: it has so many usable samples, and its first was written so long ago."""

    at_least: int
    within_ms: int


def patience(at_least: int | None, within_s: float | None) -> Patience | None:
    """None: groups are waited for. Raises InputError for numbers that can't be, and for a deadline without `at_least`."""
    if at_least is not None and at_least < 1:
        raise InputError("at_least", at_least, "must be 1 or more usable samples")
    if within_s is None:
        return None
    if within_s < 0:
        raise InputError("within_s", within_s, "must be 0 or more seconds after a group's first sample")
    if at_least is None:
        raise InputError("within_s", within_s, "say with how many usable samples a group may leave then: at_least=…")
    return Patience(at_least, round(within_s * 1000))


def trained(trajectory: Trajectory, *, by_reward: bool = True) -> list[Trace]:
    """Traces that have tokens to train, and a reward to train them by where that is asked for."""
    return [trace for trace in trajectory.traces if trace.trains and (trace.reward is not None or not by_reward)]


def is_usable(trajectory: Trajectory) -> bool:
    """A reward, and tokens to train that take it; as `early_stop` of a task counts."""
    return trajectory.reward is not None and bool(trained(trajectory))


def enough(at_least: int) -> Rule:
    """Drops groups with fewer usable samples; reason `too_few_usable`."""

    def rule(group: Group, counts: Counter[str]) -> Group | None:
        if sum(map(is_usable, group.trajectories)) >= at_least:
            return group
        counts["too_few_usable"] += 1
        return None

    return rule


def drop_zero_advantage(group: Group, counts: Counter[str]) -> Group | None:
    """Drops groups in which every reward there is is the same: GRPO learns nothing from them. Reason `zero_advantage`."""
    judged = [trajectory for trajectory in group.trajectories if trajectory.reward is not None]
    rewards = {trajectory.reward for trajectory in judged}
    rewards |= {call.reward for trajectory in judged for call in trajectory.calls if call.reward is not None}
    if len(rewards) > 1:
        return group
    counts["zero_advantage"] += 1
    return None
