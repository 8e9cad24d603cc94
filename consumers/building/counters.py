"""What the builder of one process has done, over all partitions that it has owned, for its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from consumers.metrics import Metrics
from topics.events import TrajectoryEmitted
from topics.log.heartbeat import Heart

ROLE = "builder"


@dataclass
class Tally:
    """Counts since the process started."""

    emitted: Counter[str] = field(default_factory=Counter)
    """Trajectories, by status."""
    failed: Counter[str] = field(default_factory=Counter)
    """Builds that came to nothing, by their error's code."""
    groups: int = 0
    built: int = 0
    """Builds that ran, those of a transaction that failed included."""
    build_s: float = 0.0
    """They took so long, reading back included."""
    ignored: Counter[str] = field(default_factory=Counter)

    def out(self, emitted: Sequence[TrajectoryEmitted], groups: int) -> None:
        """What a transaction has put out."""
        self.groups += groups
        for fact in emitted:
            assert fact.status is not None, "the builder says how a session ended"
            self.emitted[fact.status.value] += 1
            if fact.error is not None and fact.error.stage == "build":
                self.failed[fact.error.code] += 1

    def tell(self, metrics: Metrics, heart: Heart, partitions: Callable[[], int]) -> None:
        """Say where these figures are."""
        metrics.heart(ROLE, heart)
        metrics.gauge("polar_partitions_owned", "Partitions owned", ("role",), lambda: {ROLE: partitions()})
        metrics.counter("polar_trajectories", "Trajectories out", ("status",), lambda: self.emitted)
        metrics.counter("polar_groups", "Ends of groups out", (), lambda: self.groups)
        metrics.counter("polar_builds", "Builds run", (), lambda: self.built)
        metrics.counter("polar_builds_failed", "Builds that came to nothing", ("code",), lambda: self.failed)
        metrics.counter("polar_build_seconds", "Time that builds took", (), lambda: self.build_s)
        metrics.skipped(ROLE, lambda: self.ignored)
