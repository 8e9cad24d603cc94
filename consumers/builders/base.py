"""What a builder is: the interface that the builder process, `polar rebuild` and other people's builders share.

A builder is made once a session with the task's `builder.config`, gets all of the session's calls and gives its trajectory.
Invariant: `build` is a pure function of its argument. It is called off the event loop, has 60 s, and one that raises costs its own
session only (protocol 26). Which calls belong to a session is decided before (protocol 23), what a trace becomes at a trainer after.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from topics.completions import Build
from topics.types.completion import Completion
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory


@dataclass(frozen=True)
class BuiltFrom:
    """All that a trajectory is built from."""

    build: Build
    calls: Sequence[Completion]
    """Of `build`'s attempt and claim, in log order, between its `Open` and `Build`. May hold a call id twice: the first record counts."""
    disowned: Set[str] = frozenset()
    """Call ids that the proxy gave up: never answered, even where their record stands in `calls`."""
    late_calls: int = 0
    """How many calls came after `Build`; they are counted and not built."""


class Builder(Protocol):
    """Turns a session's calls into its trajectory."""

    def __init__(self, **config: Any) -> None:
        """Take the task's `builder.config`. Raises InputError for a setting that is unknown or of a wrong kind."""

    def build(self, session: BuiltFrom) -> Trajectory:
        """The trajectory; one without calls or traces where nothing was captured, its status always the Build's."""


def refuse_unknown(config: Mapping[str, Any], known: Collection[str] = ()) -> None:
    """Raise InputError for the first setting left in `config`; `known` names those that the builder has."""
    for name, value in config.items():
        there_are = ", ".join(sorted(known)) or "none"
        raise InputError(f"builder.config.{name}", value, f"no such setting of this builder; there are: {there_are}")
