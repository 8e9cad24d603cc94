"""Shared by the exporters: a session's traces as linear sequences, each a prompt and a response.

The response begins with the first trained token. Images and sounds of a row are its `expanded.media`. Most formats have no place for them:
their exporters refuse such rows, since the tokens alone are another prompt than the one that was sampled from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from polar.trainer.groups import Group
from polar.trainer.rows import reward_of
from topics.types.completion import Medium
from topics.types.errors import InputError
from topics.types.trajectory import Call, ExpandedTrace, Trajectory, expand

Branches = Literal["refuse", "longest"]
"""How to export a session with several traces if the trainer takes one: `refuse` raises an error, `longest` exports the longest trace."""


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
    def rewards(self) -> list[float]:
        """The rewards of its trained tokens: one per call, in order; its session must have one."""
        return [reward_of(call, self.expanded.trace) for call in self.calls]

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


Load = Callable[[Medium], Any]
"""Returns an image or a sound as the trainer takes it, for example `PIL.Image.open(BytesIO(reader.read(medium)))`."""
KINDS = {"image": "images", "audio": "audios"}
"""The trainers' names for a row's media, by kind."""


def segments(trajectory: Trajectory, *, with_media: bool = False) -> list[Segment]:
    """The trajectory's segments by length, the longest last: trainers that use one row of a rollout use the last.

    Leaves out traces that have no reward although their session has one. `with_media`: the format has a place for images and sounds;
    without it, a segment that has any raises InputError.
    """
    made = [
        segment_of(trajectory, index)
        for index, trace in reversed(list(enumerate(trajectory.traces)))
        if trace.trains and (trace.reward is not None or trajectory.reward is None)
    ]
    if not with_media:
        for segment in made:
            refuse_media(trajectory.session_id, segment.expanded.media)
    return sorted(made, key=lambda segment: len(segment.expanded.token_ids))


def refuse_media(session_id: str, media: Sequence[Medium]) -> None:
    """Raises InputError for a row with images or sounds."""
    if media:
        reason = f"has {len(media)} images or sounds in a row, and this format has no place for them; set the builder's filter drop_media"
        raise InputError("groups", session_id, reason)


def loaded(trajectory: Trajectory, segment: Segment, load: Load | None) -> dict[str, list[Any]] | None:
    """The images and sounds of a segment in order, by the trainers' names; None without any. Raises InputError if there is no `load`."""
    media = segment.expanded.media
    if not media:
        return None
    if load is None:
        reason = (
            "has images or sounds; pass load=…, a function that returns one, or set the builder's filter drop_media"
        )
        raise InputError("load", None, f"{trajectory.session_id} {reason}")
    found: dict[str, list[Any]] = {}
    for medium in media:
        found.setdefault(KINDS[medium.kind], []).append(load(medium))
    return found


def rewarded(group: Group) -> list[tuple[Trajectory, list[Segment]]]:
    """The group's sessions that have a reward and trained tokens, with their segments."""
    found = [(trajectory, segments(trajectory)) for trajectory in group.trajectories if trajectory.reward is not None]
    return [(trajectory, rows) for trajectory, rows in found if rows]


def only(trajectory: Trajectory, branches: Branches, alternative: str) -> Segment | None:
    """The session's only or longest row, with or without a reward; None without trained tokens.

    Raises InputError for a session with several rows that `branches` refuses; `alternative` says what else the caller can do.
    """
    rows = segments(trajectory)
    if len(rows) > 1 and branches == "refuse":
        reason = f"has {len(rows)} traces, and the trainer takes one: pass branches='longest', or {alternative}"
        raise InputError("groups", trajectory.session_id, reason)
    return rows[-1] if rows else None


def one_reward(trajectory: Trajectory, rows: Sequence[Segment], alternative: str) -> float:
    """The reward that all trained tokens of these rows have, for a trainer that takes one for all of them.

    Raises InputError if calls have different rewards; `alternative` says what else the caller can do.
    """
    rewards = sorted({reward for row in rows for reward in row.rewards})
    if len(rewards) > 1:
        reason = f"its calls have the rewards {rewards}, and the trainer takes one for all of them: {alternative}"
        raise InputError("groups", trajectory.session_id, reason)
    return rewards[0]


def segment_of(trajectory: Trajectory, index: int) -> Segment:
    """The segment of a trace that has trained tokens."""
    expanded = expand(trajectory, trajectory.traces[index])
    return Segment(index, expanded, expanded.spans[0].start)
