"""Shared by the exporters: a session's traces as linear sequences, each a prompt and a response.

The response begins with the first trained token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from polar.trainer.groups import Group
from topics.types.trajectory import Call, ExpandedTrace, Trajectory, expand


@dataclass(frozen=True)
class Segment:
    """A trace that has trained tokens."""

    index: int
    """Index into the trajectory's traces."""
    expanded: ExpandedTrace
    prompt_length: int
    """Number of tokens before the first trained one."""

    @property
    def reward(self) -> float:
        """The trace's reward; its session must have one."""
        found = self.expanded.trace.reward
        assert found is not None, "segments() leaves out traces without the session's reward"
        return found

    def __len__(self) -> int:
        """Length of the response."""
        return len(self.expanded.token_ids) - self.prompt_length

    @property
    def prompt_ids(self) -> list[int]:
        return list(self.expanded.token_ids[: self.prompt_length].tolist())

    @property
    def response_ids(self) -> list[int]:
        return list(self.expanded.token_ids[self.prompt_length :].tolist())

    @property
    def response_mask(self) -> list[int]:
        return list(self.expanded.loss_mask[self.prompt_length :].tolist())

    @property
    def response_logprobs(self) -> list[float]:
        return list(self.expanded.logprobs[self.prompt_length :].tolist())

    @property
    def calls(self) -> list[Call]:
        """The calls that sampled its trained tokens, in order, each once."""
        return list({span.call.call_id: span.call for span in self.expanded.spans}.values())

    @property
    def policy_versions(self) -> list[int | None]:
        """The versions that sampled its trained tokens: in order, each once per call; None for an unknown version."""
        versions = {(span.call.call_id, span.policy_version): span.policy_version for span in self.expanded.spans}
        return list(versions.values())

    @property
    def known_versions(self) -> list[int] | None:
        """`policy_versions`, or None if one of them is unknown."""
        known = [version for version in self.policy_versions if version is not None]
        return known if len(known) == len(self.policy_versions) else None

    def runs(self) -> Iterator[tuple[int, int]]:
        """The ranges `[start, end)` of adjacent trained tokens, ascending; a range may consist of several spans."""
        edges = np.flatnonzero(np.diff(self.expanded.loss_mask, prepend=0, append=0).astype(np.int8))
        yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def segments(trajectory: Trajectory) -> list[Segment]:
    """The trajectory's segments by length, the longest last: trainers that use one row of a rollout use the last.

    Leaves out traces that have no reward although their session has one.
    """
    made = [
        segment_of(trajectory, index)
        for index, trace in reversed(list(enumerate(trajectory.traces)))
        if trace.trains and (trace.reward is not None or trajectory.reward is None)
    ]
    return sorted(made, key=lambda segment: len(segment.expanded.token_ids))


def rewarded(group: Group) -> list[tuple[Trajectory, list[Segment]]]:
    """The group's sessions that have a reward and trained tokens, with their segments."""
    found = [(trajectory, segments(trajectory)) for trajectory in group.trajectories if trajectory.reward is not None]
    return [(trajectory, rows) for trajectory, rows in found if rows]


def segment_of(trajectory: Trajectory, index: int) -> Segment:
    """The segment of a trace that has trained tokens."""
    expanded = expand(trajectory, trajectory.traces[index])
    return Segment(index, expanded, expanded.spans[0].start)
