"""A group, and rules that decide which groups are trained: a rule returns the group, completely or in part, or drops it.

    consumer.groups(drop_zero_advantage, Staleness(lambda: version, limit=2), at_least=6, within_s=900)

A rule is any function of type `Rule`. Invariant: everything that a rule leaves out is counted once under a reason code. A dropped group
counts as yielded: after a crash it is checked again only if the loaded state is older.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec

from topics.types.errors import InputError
from topics.types.session import Status
from topics.types.trajectory import Call, Trace, Trajectory


class Group(msgspec.Struct, frozen=True):
    """The samples of one task: all of them, unless the group was yielded incomplete (`within_s`) or a rule removed some."""

    task_id: str
    trajectories: list[Trajectory]
    """By sample index."""

    @property
    def rewards(self) -> list[float | None]:
        """In the order of the trajectories; None if no evaluator gave a reward. Such a sample must not enter a baseline."""
        return [trajectory.reward for trajectory in self.trajectories]

    @property
    def statuses(self) -> list[Status]:
        """In the order of the trajectories."""
        return [trajectory.status for trajectory in self.trajectories]


Rule = Callable[[Group, Counter[str]], Group | None]
"""Returns the group to train, or None to drop it; counts what it leaves out in the Counter by reason code."""


@runtime_checkable
class Checked(Protocol):
    """A rule that notices when no more groups can come."""

    def check(self) -> None:
        """Called a few times a second, in the reading thread, while no group is available; raises the reason why none will come."""


@dataclass(frozen=True)
class GroupDeadline:
    """An incomplete group is yielded once it has `at_least` usable samples and its first was written `within_ms` ago."""

    at_least: int
    within_ms: int


def group_deadline(at_least: int | None, within_s: float | None) -> GroupDeadline | None:
    """None without `within_s`: groups are yielded complete. Raises InputError for invalid numbers and for a deadline without `at_least`."""
    if at_least is not None and at_least < 1:
        raise InputError("at_least", at_least, "must be 1 or more usable samples")
    if within_s is None:
        return None
    if within_s < 0:
        raise InputError("within_s", within_s, "must be 0 or more seconds after a group's first sample")
    if at_least is None:
        raise InputError(
            "within_s", within_s, "needs at_least=…, the number of usable samples that an incomplete group must have"
        )
    return GroupDeadline(at_least, round(within_s * 1000))


def trained(trajectory: Trajectory, *, by_reward: bool = True) -> list[Trace]:
    """The traces with tokens to train and, unless `by_reward` is false, with a reward."""
    return [trace for trace in trajectory.traces if trace.trains and (trace.reward is not None or not by_reward)]


def sampling_calls(trajectory: Trajectory, *, by_reward: bool = True) -> list[Call]:
    """The calls that sampled the tokens which `trained` traces train, each once, ascending."""
    nodes = {node for trace in trained(trajectory, by_reward=by_reward) for node in trace.trains}
    indexes = {trajectory.nodes[node].call for node in nodes}
    return [call for index, call in enumerate(trajectory.calls) if index in indexes]


def is_usable(trajectory: Trajectory) -> bool:
    """Whether the sample has a reward and tokens to train with it; a task's `early_stop` counts such samples."""
    return trajectory.reward is not None and bool(trained(trajectory))


def enough(at_least: int) -> Rule:
    """A rule that drops groups with fewer usable samples; reason `too_few_usable`."""

    def rule(group: Group, counts: Counter[str]) -> Group | None:
        if sum(map(is_usable, group.trajectories)) >= at_least:
            return group
        counts["too_few_usable"] += 1
        return None

    return rule


def drop_zero_advantage(group: Group, counts: Counter[str]) -> Group | None:
    """A rule that drops groups whose rewards are all equal: GRPO learns nothing from them. Reason `zero_advantage`."""
    rewarded = [trajectory for trajectory in group.trajectories if trajectory.reward is not None]
    rewards = {trajectory.reward for trajectory in rewarded}
    rewards |= {call.reward for trajectory in rewarded for call in trajectory.calls if call.reward is not None}
    if len(rewards) > 1:
        return group
    counts["zero_advantage"] += 1
    return None
