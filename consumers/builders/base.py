"""The interface of builders, for the builder process, `polar rebuild` and builders of other packages.

One builder is made for each session, with the task's `builder.config`. It gets all of the session's calls and returns the trajectory.
Invariant: `build` is a pure function of its argument. It runs off the event loop for at most 60 s, and an exception fails its own
session only (protocol 26). Which calls belong to a session is decided before (protocol 23), the form for a trainer afterwards.
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
    """The calls of `build`'s attempt and claim between `Open` and `Build`, in log order. The first record of a call id counts."""
    disowned: Set[str] = frozenset()
    """Ids of calls that the proxy gave up. They were never answered, even if their record is in `calls`."""
    late_calls: int = 0
    """Number of calls after `Build`, which are counted and not built."""


class Builder(Protocol):
    """Turns a session's calls into its trajectory."""

    def __init__(self, **config: Any) -> None:
        """`config`: the task's `builder.config`. Raises InputError for an unknown setting or a wrong type."""

    def build(self, session: BuiltFrom) -> Trajectory:
        """The trajectory, with the Build's status; without calls and traces if nothing was captured."""


def refuse_unknown(config: Mapping[str, Any], known: Collection[str] = ()) -> None:
    """Raise InputError for the first setting that is left in `config`; `known` names the builder's settings."""
    for name, value in config.items():
        there_are = ", ".join(sorted(known)) or "none"
        raise InputError(f"builder.config.{name}", value, f"no such setting of this builder; there are: {there_are}")
