"""The request of a rebuild, its progress, and its report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from topics import trajectories
from topics.types import ids
from topics.types.errors import InputError

FINAL = frozenset({"log_gap", "too_large"})
"""Codes of failures that running the same command again can't cure."""


@dataclass(frozen=True)
class RebuildRequest:
    """The sessions to rebuild, the builder, and the output topic. Raises InputError for an output that isn't allowed."""

    into: str
    """Suffix of the trajectories topic."""
    builder: str | None = None
    """None: each session's own builder, with its own settings."""
    config: bytes = b"{}"
    """JSON object: the settings of `builder`."""
    tasks: frozenset[str] = frozenset()
    """Empty: all tasks on the log."""

    def __post_init__(self) -> None:
        if self.into in ("", "trajectories", trajectories.EVAL.name.rpartition(".")[2]):
            reason = (
                "the builder writes that topic and trainers read it; name another topic for the rebuilt trajectories"
            )
            raise InputError("--into", self.into, reason)
        if not re.fullmatch(ids.NAME, self.into):
            raise InputError("--into", self.into, f"must match {ids.NAME}")

    def includes(self, task_id: str) -> bool:
        return not self.tasks or task_id in self.tasks


@dataclass
class RebuildReport:
    """The result of a run. Field names are the keys of the command's JSON."""

    sessions: int = 0
    """Sessions written by this run."""
    were_out: int = 0
    """Sessions that an earlier run had written."""
    groups: int = 0
    """Ends of groups written by this run."""
    traces: int = 0
    trainable_tokens: int = 0
    sampled_tokens: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Failed sessions by id: `<code>: <message>`. Failures of `FINAL` are written, without traces. The other sessions are
    missing, with the end of their group, until the same command builds them."""
    to_build: int = 0
    """Failed sessions that the same command builds when their builder is fixed."""
    left_the_log: list[str] = field(default_factory=list)
    """Failed sessions whose first calls have left the log."""
    incomplete: dict[str, int] = field(default_factory=dict)
    """By id of a task whose group has ended: how many of its sessions have left the log. They have no trajectory, and trainers skip the
    group."""
    unfinished: int = 0
    """Sessions that were opened and haven't ended; a later run builds them."""
    tasks_missing: list[str] = field(default_factory=list)
    """Requested tasks that aren't on the log."""
    tasks: set[str] = field(default_factory=set)
    """Ids of the tasks found."""
    unreadable: int = 0
    """Records that don't decode or are of an unknown type."""
    seconds: float = 0.0


class Progress:
    """How much of the log has been read, over all partitions: once to check it, once to build."""

    def __init__(self, report: Callable[[int, int], None], spans: Mapping[int, tuple[int, int]]) -> None:
        self._report = report
        self._total = sum(end - first for first, end in spans.values())
        starts = accumulate((end - first for first, end in spans.values()), initial=0)
        self._before = {p: start - first for start, (p, (first, _)) in zip(starts, spans.items(), strict=False)}

    def checked(self, partition: int, offset: int) -> None:
        self._report(self._before[partition] + offset + 1, 2 * self._total)

    def built(self, partition: int, offset: int) -> None:
        self._report(self._total + self._before[partition] + offset + 1, 2 * self._total)
