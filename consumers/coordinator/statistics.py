"""What one coordinator process tells of its work: what an autoscaler and a person need. How it is rendered is the reader's matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topics.types.session import Phase, Stage


@dataclass(frozen=True)
class Figures:
    """An instant's gauges, and counters since the process started. What is of partitions is of those owned now; sum over processes."""

    partitions: int
    """Of `polar.events`, owned and recovered."""
    backlog: Mapping[tuple[str, Stage, int], int]
    """Sessions that want a slot, by pool, stage and priority."""
    held: Mapping[tuple[str, Stage, int], int]
    """Sessions with a ticket or a claim, likewise."""
    staged: Mapping[str, int]
    """Sessions between an INIT ticket and a run claim, by pool."""
    slots: Mapping[tuple[str, Stage], int]
    """Slots of all live workers, by pool and stage: every coordinator tells the same."""
    free: Mapping[tuple[str, Stage], int]
    """Of these, free ones to which no ticket of this process is on its way."""
    sessions: Mapping[Phase, int]
    """Sessions in the table, by phase."""
    facts: int
    """Counter: records of `polar.events` read."""
    skipped: Mapping[str, int]
    """Counter, by reason: inputs that the table didn't allow, unknown records."""
    workers_lost: int
    """Counter: leases that ended."""
