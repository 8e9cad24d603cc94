"""What goes on right now: a pure fold over what lies on the log, and the snapshot that `polar watch` and a live page show of it.

Invariant: a snapshot's counts are those of the newest row of each session; what a minute holds is judged by the records' own times; what
is kept besides the sessions' standings is bounded. Reading the topics is `analytics/live/following.py`'s, drawing is others'. Trajectories
aren't read: `TrajectoryEmitted` lies in the same transaction and tells what is counted here without the tokens.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from analytics.live.rates import Minute
from analytics.live.standings import Group, Standings
from topics.completions import CallRecord
from topics.events import Evaluated, Fact, InitFinished, RunFinished, TrajectoryEmitted
from topics.fleet import FleetRecord, FleetView
from topics.log.liveness import LEASE_MS
from topics.sessions import Row
from topics.types.completion import CallOutcome, Completion
from topics.types.errors import SessionError
from topics.types.session import CLAIMED_STAGES, WAITING_PHASES, Phase, SessionState, Stage, TaskState
from topics.workers import Heartbeat, Sign

REMEMBER_MS = 60_000
"""A dead process is forgotten after so long."""
ERRORS = 32
"""Told of; twice as many are remembered, so that they are sorted seldom."""
MESSAGE_LIMIT = 500
"""Characters of an error's message; a harness may say pages."""


class StageLoad(msgspec.Struct, frozen=True):
    """One stage of one pool."""

    stage: Stage
    pool: str
    workers: int
    slots: int
    busy: int
    """Slots that aren't free, as the heartbeats tell."""
    waiting: int
    """Sessions that want a slot: for the run stage, READY's depth."""
    started: int
    """Sessions that a worker was granted in the last minute."""
    finished: int
    """Sessions that left a worker's hand in the last minute, however."""


class Calls(msgspec.Struct, frozen=True):
    """Model calls of the last minute."""

    answered: int
    failed: int
    abandoned: int
    sampled_tokens: int


class Trouble(msgspec.Struct, frozen=True):
    """An error of a session's attempt. Its words may be an agent's or a model's."""

    session_id: str
    attempt: int
    stage: str
    """A stage, `build`, `queue`, or `call` for a model call."""
    kind: str
    code: str
    message: str
    at: int
    """Unix ms: when it was first told."""


class Snapshot(msgspec.Struct, frozen=True):
    """Everything at one moment; rates are of the last minute."""

    at: int
    """Unix ms, on the broker's clock."""
    processes: dict[str, int]
    """Live ones by role."""
    paused: bool
    """The fleet."""
    policy_version: int | None
    """Of the engines that have no version of their own."""
    stages: list[StageLoad]
    calls: Calls
    ended: int
    """Sessions whose trajectory came out in the last minute."""
    trainable_tokens: int
    """Of those trajectories."""
    tasks: int
    phases: dict[str, int]
    """Sessions by phase, ended ones included."""
    statuses: dict[str, int]
    """Ended sessions by status."""
    groups: list[Group]
    """Those that moved last, the newest first."""
    errors: list[Trouble]
    """The newest first."""
    away_s: float | None = None
    """How long Kafka hasn't answered: all else is as of then. None: it does."""
    reading: float | None = None
    """Share of what lay on the log that was read so far, before which nothing here is complete. None: all."""
    paused_since: int | None = None
    """Unix ms: when the pause began; None while the fleet isn't paused."""
    draining: bool = False
    """The fleet: no session gets a slot."""
    fleet_generation: int = 0
    """Changes of the fleet's state so far."""


class Fold:
    """Fed with the records of the followed topics and their times (Unix ms); each topic's in its own order, topics in any."""

    def __init__(self) -> None:
        self._beats: dict[str, tuple[Heartbeat, int]] = {}
        self._standings = Standings()
        self._started: defaultdict[tuple[str, Stage], Minute] = defaultdict(Minute)
        self._finished: defaultdict[tuple[str, Stage], Minute] = defaultdict(Minute)
        self._calls: defaultdict[CallOutcome, Minute] = defaultdict(Minute)
        self._sampled = Minute()
        self._ended = Minute()
        self._trainable = Minute()
        self._errors: dict[tuple[str, int, str, str, str], Trouble] = {}
        self._fleet = FleetView()
        self._paused_since: int | None = None

    def sign(self, record: Sign, at_ms: int) -> None:
        """Of `polar.workers`."""
        if not isinstance(record, Heartbeat):
            return
        self._beats.pop(record.worker_id, None)
        if not record.leaving:
            self._beats[record.worker_id] = (record, at_ms)
        while self._beats:  # oldest first, since each beat puts its process at the end
            oldest, (_, beaten_at) = next(iter(self._beats.items()))
            if at_ms - beaten_at <= REMEMBER_MS:
                break
            del self._beats[oldest]

    def back(self, from_ms: int, now_ms: int) -> None:
        """Kafka was away from `from_ms` on: who lived then couldn't say so since, and is given another lease (protocol 12)."""
        for worker_id, (beat, at) in self._beats.items():
            if from_ms - at <= LEASE_MS:
                self._beats[worker_id] = (beat, now_ms)

    def row(self, record: Row, at_ms: int) -> None:
        """Of `polar.sessions`."""
        match record:
            case TaskState():
                self._standings.task(record)
            case SessionState():
                pool, before = self._standings.session(record, at_ms)
                if record.phase is not before:
                    self._moved(pool, before, record.phase, at_ms)
                if record.error is not None:
                    self._trouble(record.session_id, record.attempt, record.error, at_ms)

    def tombstone(self, key: str) -> None:
        """Of `polar.sessions`."""
        self._standings.forget(key)

    def fact(self, record: Fact, at_ms: int) -> None:
        """Of `polar.events`: an attempt's error, which its row doesn't keep where another attempt follows."""
        match record:
            case InitFinished() | RunFinished() | Evaluated() | TrajectoryEmitted():
                if record.error is not None:
                    self._trouble(record.session_id, record.attempt, record.error, at_ms)
        if isinstance(record, TrajectoryEmitted):
            self._trainable.add(at_ms, record.trainable_tokens)

    def call(self, record: CallRecord, at_ms: int) -> None:
        """Of `polar.completions`."""
        if not isinstance(record, Completion):
            return
        self._calls[record.outcome].add(at_ms)
        self._sampled.add(at_ms, len(record.sampled) // 4)
        if record.outcome is CallOutcome.FAILED and record.error is not None:
            why = record.error
            key = (record.session_id, record.attempt, "call", record.outcome.value, why.code)
            self._tell(key, why.message, at_ms)

    def fleet(self, record: FleetRecord, at_ms: int) -> None:
        """Of `polar.fleet`."""
        was_paused = self._fleet.paused
        self._fleet.take(record)
        if self._fleet.paused != was_paused:
            self._paused_since = at_ms if self._fleet.paused else None

    def snapshot(self, now_ms: int) -> Snapshot:
        """Everything as of `now_ms`, Unix ms on the clock of `polar.workers`' records."""
        alive = [beat for beat, at in self._beats.values() if now_ms - at <= LEASE_MS]
        return Snapshot(
            at=now_ms,
            processes=dict(sorted(Counter(beat.role for beat in alive).items())),
            paused=self._fleet.paused,
            policy_version=self._fleet.policies[None].version if None in self._fleet.policies else None,
            stages=self._loads(alive, now_ms),
            calls=Calls(
                **{outcome.value: self._calls[outcome].total(now_ms) for outcome in CallOutcome},
                sampled_tokens=self._sampled.total(now_ms),
            ),
            ended=self._ended.total(now_ms),
            trainable_tokens=self._trainable.total(now_ms),
            tasks=self._standings.tasks,
            phases={phase.value: count for phase, count in self._standings.phases().items()},
            statuses={status.value: count for status, count in self._standings.statuses().items()},
            groups=self._standings.groups(),
            errors=_newest(self._errors),
            paused_since=self._paused_since,
            draining=self._fleet.draining,
            fleet_generation=self._fleet.generation,
        )

    def _loads(self, alive: list[Heartbeat], now_ms: int) -> list[StageLoad]:
        """Each stage of each pool that has workers, or sessions that haven't ended."""
        told = [slots for beat in alive for slots in beat.stages]
        sessions = self._standings.in_pools()
        unfinished = {pool for pool, phase in sessions if phase is not Phase.ENDED}
        loads = []
        for pool in sorted(unfinished | {slots.pool for slots in told}):
            for stage in Stage:
                here = [slots for slots in told if (slots.stage, slots.pool) == (stage, pool)]
                free = sum(slots.free for slots in here)
                slots = sum(slots.slots for slots in here)
                loads.append(
                    StageLoad(
                        stage,
                        pool,
                        workers=len(here),
                        slots=slots,
                        busy=slots - free,
                        waiting=sessions.get((pool, WAITING_PHASES[stage]), 0),
                        started=self._started[pool, stage].total(now_ms),
                        finished=self._finished[pool, stage].total(now_ms),
                    )
                )
        return loads

    def _moved(self, pool: str, before: Phase | None, after: Phase, at_ms: int) -> None:
        if after in CLAIMED_STAGES:
            self._started[pool, CLAIMED_STAGES[after]].add(at_ms)
        if before in CLAIMED_STAGES:
            self._finished[pool, CLAIMED_STAGES[before]].add(at_ms)
        if after is Phase.ENDED:
            self._ended.add(at_ms)

    def _trouble(self, session_id: str, attempt: int, error: SessionError, at_ms: int) -> None:
        self._tell((session_id, attempt, error.stage, error.kind.value, error.code), error.message, at_ms)

    def _tell(self, key: tuple[str, int, str, str, str], message: str, at_ms: int) -> None:
        """An error is told by a fact, then by each row until the session's end: it counts once, from the first time on."""
        known = self._errors.get(key)
        if known is None or at_ms < known.at:
            self._errors[key] = Trouble(*key, message[:MESSAGE_LIMIT], at_ms)
        if len(self._errors) > 2 * ERRORS:
            kept = set(_newest(self._errors))
            self._errors = {key: trouble for key, trouble in self._errors.items() if trouble in kept}


def _newest(errors: dict[tuple[str, int, str, str, str], Trouble]) -> list[Trouble]:
    return sorted(errors.values(), key=lambda trouble: -trouble.at)[:ERRORS]
