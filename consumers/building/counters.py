"""Figures of a builder process since its start, over all partitions that it has owned, for its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from consumers.metrics import Metrics
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.heartbeat import HeartbeatSender
from topics.log.lag import Lag
from topics.types.completion import Completion
from topics.types.tokens import count
from topics.types.trajectory import SameWeights, Trajectory, answer_offsets

ROLE = "builder"
NOT_GIVEN = "not_given"
"""Cause of a null reward of a session without an error: nobody gave one."""


class Newest(NamedTuple):
    """The newest weights of an engine that have sampled a call; compares by age."""

    publication: int
    """Offset of the record that published them on `polar.fleet`; -1: unknown."""
    version: int


@dataclass
class BuilderCounters:
    """Counts since the process started."""

    emitted: Counter[str] = field(default_factory=Counter)
    """Trajectories, by status."""
    failed: Counter[str] = field(default_factory=Counter)
    """Failed builds, by error code."""
    null_rewards: Counter[str] = field(default_factory=Counter)
    """Trajectories without a reward, by the kind of their error or NOT_GIVEN."""
    newest: dict[str, Newest] = field(default_factory=dict)
    """By engine."""
    trained: Counter[str] = field(default_factory=Counter)
    """Trained tokens of a known version, by engine."""
    behind: Counter[str] = field(default_factory=Counter)
    """Over these tokens, the sum of the versions that each was behind the newest one when its trajectory was written."""
    groups: int = 0
    built: int = 0
    """Finished builds, including builds for a transaction that failed."""
    build_s: float = 0.0
    """Time of those builds, reading calls back included."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Records passed over, by reason."""
    read_to: dict[kafka.TopicPartition, int] = field(default_factory=dict)
    """The next offset of each owned partition that is read."""

    def sampled(self, call: Completion) -> None:
        """Note the weights of a call that was read."""
        last = call.policy_spans[-1] if call.policy_spans else None
        version, publication = (
            (call.policy_version, call.publication) if last is None else (last.version, last.publication)
        )
        if version is not None:
            found = Newest(-1 if publication is None else publication, version)
            self.newest[call.engine] = max(found, self.newest.get(call.engine, found))

    def committed(self, written: Sequence[Trajectory], groups: int) -> None:
        """Count what a committed transaction holds."""
        self.groups += groups
        for trajectory in written:
            self.emitted[trajectory.status.value] += 1
            error = trajectory.error
            if error is not None and error.stage == "build":
                self.failed[error.code] += 1
            if trajectory.reward is None:
                self.null_rewards[NOT_GIVEN if error is None else error.kind.value] += 1
            self._add_trained(trajectory)

    def _add_trained(self, trajectory: Trajectory) -> None:
        try:
            runs = list(_trained_runs(trajectory))
        except IndexError:
            # A builder of a plug-in may name calls or nodes that don't exist. The trajectory is written, and must not end the process.
            return
        for engine, run in runs:
            if run.version is None:
                continue
            tokens, newest = run.end - run.start, self.newest.get(engine)
            self.trained[engine] += tokens
            # After a rollback tokens may have a higher version than the newest weights: those aren't behind.
            self.behind[engine] += 0 if newest is None else tokens * max(0, newest.version - run.version)

    def register(
        self, metrics: Metrics, heart: HeartbeatSender, settings: Settings, partitions: Callable[[], int]
    ) -> None:
        """Make these figures part of `metrics`."""
        metrics.heart(ROLE, heart)
        metrics.lag(ROLE, Lag(settings, lambda: self.read_to))
        metrics.gauge("polar_partitions_owned", "Partitions owned", ("role",), lambda: {ROLE: partitions()})
        metrics.counter("polar_trajectories", "Trajectories written", ("status",), lambda: self.emitted)
        null = "Trajectories without a reward, by the kind of their error"
        metrics.counter("polar_null_rewards", null, ("cause",), lambda: self.null_rewards)
        trained = "Trained tokens whose policy version is known"
        metrics.counter("polar_trained_tokens", trained, ("engine",), lambda: self.trained)
        behind = "Versions behind the newest one at delivery, summed over trained tokens"
        metrics.counter("polar_trained_versions_behind", behind, ("engine",), lambda: self.behind)
        metrics.counter("polar_groups", "Finished groups written", (), lambda: self.groups)
        metrics.counter("polar_builds", "Builds run", (), lambda: self.built)
        metrics.counter("polar_builds_failed", "Failed builds", ("code",), lambda: self.failed)
        metrics.counter("polar_build_seconds", "Time spent in builds", (), lambda: self.build_s)
        metrics.skipped(ROLE, lambda: self.ignored)


def _trained_runs(trajectory: Trajectory) -> Iterator[tuple[str, SameWeights]]:
    """The trained tokens as runs of equal weights, each with its engine. Raises IndexError."""
    for node, first in zip(trajectory.nodes, answer_offsets(trajectory.nodes), strict=True):
        if node.call is not None and first is not None and node.masked is None:
            call = trajectory.calls[node.call]
            for run in call.weights(first, first + count(node.tokens)):
                yield call.engine, run
