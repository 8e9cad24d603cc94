"""What a rebuild is asked for, and what it tells of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from topics import trajectories
from topics.types import ids
from topics.types.errors import InputError

FINAL = frozenset({"log_gap", "too_large"})
"""Codes of failures that no other run of the same command mends."""


@dataclass(frozen=True)
class Wanted:
    """What to rebuild, by which builder, and where to."""

    into: str
    """Suffix of the trajectories topic."""
    builder: str | None = None
    """None: each session's own, with its own settings."""
    config: bytes = b"{}"
    """JSON object: the settings of `builder`."""
    tasks: frozenset[str] = frozenset()
    """Empty: all on the log."""

    def takes(self, task_id: str) -> bool:
        return not self.tasks or task_id in self.tasks


@dataclass
class Done:
    """What a run has done."""

    sessions: int = 0
    """Written by this run."""
    were_out: int = 0
    """In the output already: an earlier run's."""
    groups: int = 0
    """Ends of groups written by this run."""
    traces: int = 0
    trainable_tokens: int = 0
    sampled_tokens: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Sessions that came to nothing, by id: `<code>: <message>`. Those of `FINAL` are out as FAILED, without a reward; the others are
    missing, with the end of their group, until the same command comes to something."""
    to_build: int = 0
    """Of these, sessions that the same command builds once their builder is mended."""
    left_the_log: list[str] = field(default_factory=list)
    """Of these, sessions whose first calls the log doesn't hold any more."""
    incomplete: dict[str, int] = field(default_factory=dict)
    """By task id whose group has ended: how many of its sessions the log doesn't know any more. No trajectory stands for them, and trainers
    skip the group."""
    unfinished: int = 0
    """Sessions that were opened and haven't ended; another run builds them when they have."""
    tasks_missing: list[str] = field(default_factory=list)
    """Asked for, and not on the log."""
    tasks: set[str] = field(default_factory=set)
    """Looked at, by id."""
    unreadable: int = 0
    """Records that don't decode, or of an unknown type."""
    seconds: float = 0.0


def check_output(into: str) -> None:
    """Raises InputError for a name that no output may have, or that is the builder's own."""
    if into in ("", "trajectories", trajectories.EVAL.name.rpartition(".")[2]):
        raise InputError(
            "--into", into, "the builder writes that topic and trainers read it; name one for what is rebuilt"
        )
    if not re.fullmatch(ids.NAME, into):
        raise InputError("--into", into, f"must match {ids.NAME}")
