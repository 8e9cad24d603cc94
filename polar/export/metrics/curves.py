"""The points of a run's curves, out of the views `run_minutes` and `run_versions`, which define every figure.

A point is one row of such a view. It is written once, when its row can't change any more, and it is identified by its axis and its time.
So a program that knows the time of its newest point knows all that it lacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from analytics.queries.query import Reader
from analytics.queries.views import quoted
from topics.types.errors import Kind


class Axis(StrEnum):
    """The unit of a point's step; also the first part of its curves' names."""

    BY_VERSION = "by_version"
    """The trainer's policy version. The point's time is the end of the version's last session."""
    BY_MINUTE = "by_minute"
    """Minutes since the run's first task was submitted. The point's time is the end of the minute."""


class Curve(NamedTuple):
    """A curve of a run, for each axis."""

    name: str
    sql: str
    """Over the columns of `run_minutes` and `run_versions`."""


CURVES = (
    Curve("reward_mean", "mean_reward"),
    Curve("reward_std", "std_reward"),
    Curve("reward_null_share", "null_reward_share"),
    Curve("zero_variance_share", "zero_variance_share"),
    Curve("groups", "groups"),
    Curve("sessions_ended", "ended"),
    Curve("sessions_completed", "completed"),
    Curve("sessions_failed", "failed"),
    Curve("sessions_timed_out", "timed_out"),
    Curve("sessions_cancelled", "cancelled"),
    *(Curve(f"failures_{kind.value}", f"coalesce(failures[{quoted(kind.value)}], 0)") for kind in Kind),
    Curve("duration_ms", "mean_duration_ms"),
    Curve("calls", "calls"),
    Curve("prompt_tokens", "prompt_tokens"),
    Curve("sampled_tokens", "sampled_tokens"),
    Curve("trainable_tokens", "trainable_tokens"),
    Curve("masked_share", "masked_share"),
    Curve("merge_rate", "merge_rate"),
    Curve("versions_behind", "mean_versions_behind"),
)


class View(NamedTuple):
    """The view of an axis, and the columns of a point's step and time in it."""

    name: str
    step: str
    at: str


VIEWS = {
    Axis.BY_VERSION: View("run_versions", "policy_version", "ended_at"),
    Axis.BY_MINUTE: View("run_minutes", "minute_number", "closed_at"),
}


@dataclass(frozen=True)
class Point:
    """The values of all curves of an axis at one step."""

    axis: Axis
    step: int
    at_ms: int
    """Unix ms; grows from point to point of an axis."""
    values: dict[str, float]
    """By the curve's full name; without those that have no finite value here."""


def tag(axis: Axis, curve: Curve) -> str:
    """The full name of a curve."""
    return f"{axis}/{curve.name}"


def points(reader: Reader, run: str, axis: Axis, since_ms: int, until_ms: int) -> Iterator[Point]:
    """The points of a run whose time is `since_ms` or later and that can't change any more, ascending in time.

    `until_ms`: the lake has all records up to this time (Unix ms). Raises as `Reader.ask`.
    """
    view = VIEWS[axis]
    columns = ", ".join(f"CAST({curve.sql} AS DOUBLE)" for curve in CURVES)
    sql = f"""
        SELECT {view.step}, epoch_ms({view.at}), {columns} FROM {view.name}
        WHERE run = {quoted(run)} AND epoch_ms({view.at}) >= {since_ms} AND epoch_ms(closed_at) <= {until_ms}
        ORDER BY {view.at}
    """  # noqa: S608 - quoted, and only reads are run
    for step, at_ms, *values in reader.ask(sql).rows():
        named = zip((tag(axis, curve) for curve in CURVES), values, strict=True)
        yield Point(
            axis, step, at_ms, {name: value for name, value in named if value is not None and math.isfinite(value)}
        )
