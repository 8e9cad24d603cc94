"""Shared by the exporters: routed experts and sampling masks of a segment, whole or refused, and of all rows or none.

A session whose engine captured a value gives it for all its segments; one whose engine didn't gives none. Trainers take no gaps: they would
replay expert 0, or a whole vocabulary. So a segment that lacks part of a captured value raises InputError, and `drop_uncaptured`
(`polar/trainer/replay.py`) leaves such sessions out beforehand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from polar.trainer.exporters.segments import Segment
from polar.trainer.replay import UNROUTED, Experts, Replay
from topics.types.completion import ReplayField
from topics.types.errors import InputError
from topics.types.replay import SamplingMask
from topics.types.trajectory import Call, Trajectory

Value = TypeVar("Value", Experts, SamplingMask)


def routed_experts(replay: Replay | None, trajectory: Trajectory, segment: Segment) -> Experts | None:
    """int16 [n - 1, layers, top_k]: the experts of the segment's n tokens, whose last is routed nowhere. None without `replay`, and for a
    session whose engine captured none. Raises InputError for a gap, and as `Replay`."""
    if replay is None or not _is_captured(trajectory, "routed_experts"):
        return None
    found = replay.routed_experts(trajectory, segment.index)
    size = len(segment.expanded.token_ids) - 1
    gaps = size if found is None else int(np.count_nonzero((found[:-1] == UNROUTED).any(axis=(1, 2))))
    if found is None or gaps:
        raise _incomplete(trajectory, segment, "routed_experts", gaps, size)
    return found[:-1]


def response_mask(replay: Replay | None, trajectory: Trajectory, segment: Segment) -> SamplingMask | None:
    """The sampling mask of the segment's response, one for each trained token. None and errors as for `routed_experts`."""
    if replay is None or not _is_captured(trajectory, "sampling_mask"):
        return None
    found = replay.sampling_mask(trajectory, segment.index)
    trained = segment.expanded.loss_mask.astype(bool)
    lengths = np.zeros(len(trained), dtype=np.int32) if found is None else np.diff(found.offsets)
    gaps = int(np.count_nonzero(trained & (lengths == 0)))
    if found is None or gaps:
        raise _incomplete(trajectory, segment, "sampling_mask", gaps, int(trained.sum()))
    offsets = found.offsets[segment.prompt_length :]
    return SamplingMask(found.token_ids[offsets[0] :], offsets - offsets[0])


def of_all(rows: Sequence[tuple[Trajectory, Value | None]], field: ReplayField) -> list[Value] | None:
    """The values of rows, each with its session; None if no row has one. Raises InputError if only some have."""
    found = [value for _, value in rows if value is not None]
    without = [trajectory.session_id for trajectory, value in rows if value is None]
    if found and without:
        reason = (
            f"{len(without)} of {len(rows)} rows are of sessions without {field}, and the trainer takes all rows' or none: "
            "leave these sessions out, or export without replay"
        )
        raise InputError("groups", without[0], reason)
    return found or None


def with_last_row(experts: Experts, fill: NDArray[np.int16] | int) -> Experts:
    """The experts with a row for the last token: int16 [n, layers, top_k]."""
    row = np.broadcast_to(np.asarray(fill, dtype=np.int16), (1, *experts.shape[1:]))
    return np.concatenate([experts, row])


def _is_captured(trajectory: Trajectory, field: ReplayField) -> bool:
    """Whether an engine of the session was set to capture the value, also if it never succeeded."""
    return any(getattr(call, field) is not None or field in call.uncaptured for call in trajectory.calls)


def _reason(call: Call, field: ReplayField) -> str | None:
    """Why a call gives no values; None: it gives them, or was never to."""
    is_doubted = getattr(call, field) is not None and call.prompt_doubt is not None
    return call.uncaptured.get(field, "prompt_doubt" if is_doubted else None)


def _incomplete(trajectory: Trajectory, segment: Segment, field: ReplayField, gaps: int, size: int) -> InputError:
    reasons = Counter(reason for call in trajectory.calls if (reason := _reason(call, field)) is not None)
    listed = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items())) or "none is known"
    return InputError(
        "groups",
        trajectory.session_id,
        f"{gaps} of {size} tokens of trace {segment.index} have no {field} (calls by reason: {listed}): pass drop_uncaptured to groups(), "
        "or export without replay",
    )
