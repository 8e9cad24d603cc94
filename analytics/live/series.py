"""Curves of the last hours: sums by minute and run over finished sessions and groups, and by harness.

Invariant: sums are those of the trajectories whose records are in the window, in whatever order they came; memory is bounded by the window,
`RUNS` runs and `REWARDS` rewards of a minute. Records of `polar rebuild` don't count: their sessions would count twice.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec
import numpy as np

from analytics.queries.curve_views import EXTENDING
from topics.types.completion import CallOutcome
from topics.types.trajectory import GroupFinished, Trajectory

MINUTE_MS = 60_000
WINDOW = 180
"""Minutes."""
RUNS = 50
"""Runs with curves of their own. The run whose newest session ended first makes room."""
REWARDS = 5_000
"""Rewards of a minute that the histogram shows; the mean is that of all."""
BINS = 20
HARNESSES = 100
"""Names counted in a minute: a name may be any `module:Class`."""
VERSIONS = 50
"""The newest policy versions counted in a minute."""
ALL = ""
"""The run that stands for all."""


class Bucket(msgspec.Struct, frozen=True):
    """One minute of a run."""

    at: int
    """Unix ms: its beginning."""
    sessions: int
    """Trajectories written in it."""
    mean_reward: float | None
    reward_counts: list[int]
    """Rewards in 20 bins of equal width over the run's `low` to `high`; empty if the run has no reward."""
    groups: int
    """Groups finished in it."""
    zero_variance_groups: int
    """Groups whose rewards are all equal: GRPO learns nothing from them."""
    sampled_tokens: int
    trainable_tokens: int
    failures: dict[str, int]
    """Sessions with an error, by its kind."""
    staleness_mean: float | None
    """Mean over calls: by how many versions the weights were older than the newest that had sampled anything by then."""
    policy_versions: dict[int, int]
    """Calls by the version that sampled them."""


class Curve(msgspec.Struct, frozen=True):
    """A run's minutes with at least one record, ascending."""

    low: float | None
    """Lowest reward shown, at most 0; None: there is none."""
    high: float | None
    """Highest reward shown, at least 1; None: there is none."""
    buckets: list[Bucket]


class HarnessSum(msgspec.Struct, frozen=True):
    """A harness's sessions in the window."""

    harness: str
    sessions: int
    merge_rate: float | None
    """Share of its calls with a history that continue an earlier call exactly; None: it has none."""
    sampled_tokens: int
    prompt_tokens: int
    """Tokens of whole prompts, as the engine read them."""


class _Minute:
    def __init__(self) -> None:
        self.sessions = 0
        self.rewards = array("d")
        self.low = math.inf
        """Lowest of `rewards`."""
        self.high = -math.inf
        self.rewarded = 0
        self.reward_sum = 0.0
        self.groups = 0
        self.zero_variance = 0
        self.sampled = 0
        self.trainable = 0
        self.failures: Counter[str] = Counter()
        self.versions: Counter[int] = Counter()
        self.harnesses: dict[str, list[int]] = {}
        """Sessions, extending calls, calls with a history, sampled tokens, prompt tokens."""


class Series:
    """Takes records of trajectories topics with their timestamps (Unix ms)."""

    def __init__(self) -> None:
        self._minutes: defaultdict[str, dict[int, _Minute]] = defaultdict(dict)
        """By run and minute."""
        self._newest = 0

    def trajectory(self, record: Trajectory, at_ms: int) -> None:
        """Take a trajectory."""
        if record.rebuilt_with is not None:
            return
        for run in _runs(record.run):
            minute = self._minute(run, at_ms)
            if minute is not None:
                _add_session(minute, record)
                if run == ALL:
                    _add_harness(minute, record)

    def group(self, record: GroupFinished, at_ms: int) -> None:
        """Take the end of a group."""
        if record.rebuilt:
            return
        known = [reward for reward in record.rewards if reward is not None]
        for run in _runs(record.run):
            minute = self._minute(run, at_ms)
            if minute is not None:
                minute.groups += 1
                minute.zero_variance += len(known) > 1 and len(set(known)) == 1

    @property
    def runs(self) -> list[str]:
        """Names of the runs with curves, sorted."""
        return sorted(set(self._minutes) - {ALL})

    def curves(self, newest: int = WINDOW) -> dict[str, Curve]:
        """A curve for each run, and one for all; at most `newest` minutes of each."""
        return {run: _curve(minutes, newest) for run, minutes in self._minutes.items() if minutes}

    def harnesses(self) -> list[HarnessSum]:
        """The harnesses, those with most sessions first."""
        sums: defaultdict[str, list[int]] = defaultdict(lambda: [0] * 5)
        for minute in self._minutes[ALL].values():
            for name, figures in minute.harnesses.items():
                sums[name] = [a + b for a, b in zip(sums[name], figures, strict=True)]
        found = [
            HarnessSum(name, sessions, extending / calls if calls else None, sampled, prompts)
            for name, (sessions, extending, calls, sampled, prompts) in sums.items()
        ]
        return sorted(found, key=lambda one: (-one.sessions, one.harness))

    def _minute(self, run: str, at_ms: int) -> _Minute | None:
        """The sums of a run's minute; None if it lies before the window."""
        number = at_ms // MINUTE_MS
        if number > self._newest:
            self._newest = number
            self._forget()
        if number <= self._newest - WINDOW:
            return None
        minutes = self._minutes[run]
        if number not in minutes:
            minutes[number] = _Minute()
            self._bound_runs(run)
        return minutes[number]

    def _forget(self) -> None:
        for run, minutes in list(self._minutes.items()):
            for number in [number for number in minutes if number <= self._newest - WINDOW]:
                del minutes[number]
            if not minutes:
                del self._minutes[run]

    def _bound_runs(self, added: str) -> None:
        if len(self._minutes) > RUNS + 1:
            others = (run for run in self._minutes if run not in (ALL, added))
            del self._minutes[min(others, key=lambda run: (max(self._minutes[run]), run))]


def _runs(run: str | None) -> Iterable[str]:
    return (ALL,) if run is None else (ALL, run)


def _add_session(minute: _Minute, record: Trajectory) -> None:
    minute.sessions += 1
    minute.sampled += record.stats.sampled_tokens
    minute.trainable += record.stats.trainable_tokens
    if record.error is not None:
        minute.failures[record.error.kind.value] += 1
    if record.reward is not None and math.isfinite(record.reward):
        minute.rewarded += 1
        minute.reward_sum += record.reward
        if len(minute.rewards) < REWARDS:
            minute.rewards.append(record.reward)
            minute.low, minute.high = min(minute.low, record.reward), max(minute.high, record.reward)
    for call in record.calls:
        if call.policy_version is not None and call.outcome == CallOutcome.ANSWERED:
            minute.versions[call.policy_version] += 1
    if len(minute.versions) > VERSIONS:
        minute.versions = Counter(
            {version: minute.versions[version] for version in sorted(minute.versions)[-VERSIONS:]}
        )


def _add_harness(minute: _Minute, record: Trajectory) -> None:
    if record.harness not in minute.harnesses and len(minute.harnesses) >= HARNESSES:
        return
    drift = record.stats.drift
    figures = [
        1,
        sum(drift.get(kind, 0) for kind in EXTENDING),
        sum(drift.values()),
        record.stats.sampled_tokens,
        sum(call.prompt_tokens for call in record.calls),
    ]
    before = minute.harnesses.get(record.harness, [0] * 5)
    minute.harnesses[record.harness] = [a + b for a, b in zip(before, figures, strict=True)]


def _curve(minutes: dict[int, _Minute], newest: int) -> Curve:
    rewarded = [minute for minute in minutes.values() if minute.rewards]
    # Equal rewards alone would have no range.
    low = min([0.0, *(minute.low for minute in rewarded)]) if rewarded else None
    high = max([1.0, *(minute.high for minute in rewarded)]) if rewarded else None
    buckets = []
    version = -1
    for number in sorted(minutes):
        minute = minutes[number]
        version = max([version, *minute.versions])
        buckets.append((number, minute, version))
    return Curve(low, high, [_bucket(*each, low, high) for each in buckets[-newest:]])


def _bucket(number: int, minute: _Minute, version: int, low: float | None, high: float | None) -> Bucket:
    mean = minute.reward_sum / minute.rewarded if minute.rewarded else None
    calls = minute.versions.total()
    return Bucket(
        at=number * MINUTE_MS,
        sessions=minute.sessions,
        mean_reward=mean if mean is None or math.isfinite(mean) else None,
        reward_counts=[] if low is None or high is None else _binned(minute.rewards, low, high),
        groups=minute.groups,
        zero_variance_groups=minute.zero_variance,
        sampled_tokens=minute.sampled,
        trainable_tokens=minute.trainable,
        failures=dict(minute.failures),
        staleness_mean=sum((version - each) * n for each, n in minute.versions.items()) / calls if calls else None,
        policy_versions=dict(sorted(minute.versions.items())),
    )


def _binned(rewards: array[float], low: float, high: float) -> list[int]:
    """Rewards by bin. `low` is below `high`, which the last bin includes."""
    # Halves: the difference of two finite rewards may be infinite.
    width = high / 2 - low / 2
    places = (np.frombuffer(rewards) / 2 - low / 2) / width * BINS
    counts = np.bincount(np.minimum(places.astype(np.int64), BINS - 1), minlength=BINS)
    return [int(n) for n in counts]
