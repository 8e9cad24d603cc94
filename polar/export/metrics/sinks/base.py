"""The interface of a program that shows curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from polar.export.metrics.curves import Point
from topics.types.errors import NotReadyError


class SinkError(NotReadyError):
    """The program didn't take a point, or doesn't tell what it has. The point may be written again."""


class Sink(Protocol):
    """One run in such a program."""

    address: str
    """Where a person finds it."""

    def written(self) -> Mapping[str, int]:
        """The time (Unix ms) of the newest value of each curve, by the curve's full name. Raises SinkError."""

    def write(self, point: Point) -> None:
        """Write the values of a point. Raises SinkError; a part of the values may be written then."""

    def close(self) -> None:
        """Return once everything is written."""
