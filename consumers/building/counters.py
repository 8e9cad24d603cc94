"""Figures of a builder process since its start, over all partitions that it has owned, for its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from consumers.metrics import Metrics
from topics.environment.settings import Settings
from topics.events import TrajectoryEmitted
from topics.log import kafka
from topics.log.heartbeat import HeartbeatSender
from topics.log.lag import Lag

ROLE = "builder"


@dataclass
class BuilderCounters:
    """Counts since the process started."""

    emitted: Counter[str] = field(default_factory=Counter)
    """Trajectories, by status."""
    failed: Counter[str] = field(default_factory=Counter)
    """Failed builds, by error code."""
    groups: int = 0
    built: int = 0
    """Finished builds, including builds for a transaction that failed."""
    build_s: float = 0.0
    """Time of those builds, reading calls back included."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Records passed over, by reason."""
    read_to: dict[kafka.TopicPartition, int] = field(default_factory=dict)
    """The next offset of each owned partition that is read."""

    def committed(self, emitted: Sequence[TrajectoryEmitted], groups: int) -> None:
        """Count what a committed transaction holds."""
        self.groups += groups
        for fact in emitted:
            assert fact.status is not None, "the builder reports how a session ended"
            self.emitted[fact.status.value] += 1
            if fact.error is not None and fact.error.stage == "build":
                self.failed[fact.error.code] += 1

    def register(
        self, metrics: Metrics, heart: HeartbeatSender, settings: Settings, partitions: Callable[[], int]
    ) -> None:
        """Make these figures part of `metrics`."""
        metrics.heart(ROLE, heart)
        metrics.lag(ROLE, Lag(settings, lambda: self.read_to))
        metrics.gauge("polar_partitions_owned", "Partitions owned", ("role",), lambda: {ROLE: partitions()})
        metrics.counter("polar_trajectories", "Trajectories written", ("status",), lambda: self.emitted)
        metrics.counter("polar_groups", "Finished groups written", (), lambda: self.groups)
        metrics.counter("polar_builds", "Builds run", (), lambda: self.built)
        metrics.counter("polar_builds_failed", "Failed builds", ("code",), lambda: self.failed)
        metrics.counter("polar_build_seconds", "Time spent in builds", (), lambda: self.build_s)
        metrics.skipped(ROLE, lambda: self.ignored)
