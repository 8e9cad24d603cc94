"""Current activity: a pure fold over records of the log, and its snapshot, which `polar watch` shows.

Invariant: a snapshot's counts are those of the newest row of each session; rates use the records' timestamps; memory, apart from the
session counts, is bounded. `analytics/live/view.py` reads the topics. Trajectories aren't read: `TrajectoryEmitted`, in the same
transaction, has the figures needed without the tokens.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from analytics.live.rates import Minute
from analytics.live.session_counts import Group, SessionCounts
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
"""A process without heartbeats is dropped after this time."""
ERRORS = 32
"""Number of errors shown; twice as many are kept, so that sorting stays rare."""
MESSAGE_LIMIT = 500
"""Characters of an error's message; a harness may write pages."""


class StageLoad(msgspec.Struct, frozen=True):
    stage: Stage
    pool: str
    workers: int
    slots: int
    busy: int
    """Slots that aren't free, by the heartbeats."""
    waiting: int
    """Sessions that wait for a slot; for the run stage, those in READY."""
    started: int
    """Sessions that were assigned to a worker in the last minute."""
    finished: int
    """Sessions that ended this stage in the last minute, for whatever reason."""


class Calls(msgspec.Struct, frozen=True):
    """Model calls of the last minute."""

    answered: int
    failed: int
    abandoned: int
    sampled_tokens: int


class AttemptError(msgspec.Struct, frozen=True):
    """An error of a session's attempt. Its message may contain text of an agent or a model."""

    session_id: str
    attempt: int
    stage: str
    """A stage, `build`, `queue`, or `call` for a model call."""
    kind: str
    code: str
    message: str
    at: int
    """Unix ms: when it was first reported."""


class Snapshot(msgspec.Struct, frozen=True):
    """All figures at one moment; rates are of the last minute."""

    at: int
    """Unix ms, on the broker's clock."""
    processes: dict[str, int]
    """Live processes by role."""
    paused: bool
    """Whether the fleet is paused."""
    policy_version: int | None
    """The policy version of engines without a version of their own."""
    stages: list[StageLoad]
    calls: Calls
    ended: int
    """Sessions that got their trajectory in the last minute."""
    trainable_tokens: int
    """Trainable tokens of these trajectories."""
    tasks: int
    phases: dict[str, int]
    """Sessions by phase, including ended ones."""
    statuses: dict[str, int]
    """Ended sessions by status."""
    groups: list[Group]
    """The groups in which a session changed its phase last, the newest first."""
    errors: list[AttemptError]
    """Recent errors, the newest first."""
    away_s: float | None = None
    """Seconds since Kafka's last answer, which is the time of all other figures. None: Kafka answers."""
    reading: float | None = None
    """Share of the log's records that was read; until all are read, figures are incomplete. None: all."""
    paused_since: int | None = None
    """Unix ms: when the pause began; None while the fleet isn't paused."""
    draining: bool = False
    """Whether the fleet is draining: no session gets a slot."""
    fleet_generation: int = 0
    """Number of changes of the fleet's state."""
    obstacles: list[str] = []
    """The obstacles that live processes report, each with its host: they wait for a person."""


class Fold:
    """Takes records of the followed topics with their timestamps (Unix ms), in order within a topic."""

    def __init__(self) -> None:
        self._beats: dict[str, tuple[Heartbeat, int]] = {}
        self._sessions = SessionCounts()
        self._started: defaultdict[tuple[str, Stage], Minute] = defaultdict(Minute)
        self._finished: defaultdict[tuple[str, Stage], Minute] = defaultdict(Minute)
        self._calls: defaultdict[CallOutcome, Minute] = defaultdict(Minute)
        self._sampled = Minute()
        self._ended = Minute()
        self._trainable = Minute()
        self._errors: dict[tuple[str, int, str, str, str], AttemptError] = {}
        self._fleet = FleetView()
        self._paused_since: int | None = None

    def sign(self, record: Sign, at_ms: int) -> None:
        """Take a record of `polar.workers`."""
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
        """Kafka was unreachable since `from_ms`: processes alive then couldn't send heartbeats and get another lease (protocol 12)."""
        for worker_id, (beat, at) in self._beats.items():
            if from_ms - at <= LEASE_MS:
                self._beats[worker_id] = (beat, now_ms)

    def row(self, record: Row, at_ms: int) -> None:
        """Of `polar.sessions`."""
        match record:
            case TaskState():
                self._sessions.task(record)
            case SessionState():
                pool, before = self._sessions.session(record, at_ms)
                if record.phase is not before:
                    self._moved(pool, before, record.phase, at_ms)
                if record.error is not None:
                    self._add_session_error(record.session_id, record.attempt, record.error, at_ms)

    def tombstone(self, key: str) -> None:
        """Of `polar.sessions`."""
        self._sessions.forget(key)

    def fact(self, record: Fact, at_ms: int) -> None:
        """Take a record of `polar.events`: it has an attempt's error, which the session's row loses if another attempt follows."""
        match record:
            case InitFinished() | RunFinished() | Evaluated() | TrajectoryEmitted():
                if record.error is not None:
                    self._add_session_error(record.session_id, record.attempt, record.error, at_ms)
        if isinstance(record, TrajectoryEmitted):
            self._trainable.add(at_ms, record.trainable_tokens)

    def call(self, record: CallRecord, at_ms: int) -> None:
        """Take a record of `polar.completions`."""
        if not isinstance(record, Completion):
            return
        self._calls[record.outcome].add(at_ms)
        self._sampled.add(at_ms, len(record.sampled) // 4)
        if record.outcome is CallOutcome.FAILED and record.error is not None:
            why = record.error
            key = (record.session_id, record.attempt, "call", record.outcome.value, why.code)
            self._add_error(key, why.message, at_ms)

    def fleet(self, record: FleetRecord, at_ms: int) -> None:
        """Take a record of `polar.fleet`."""
        was_paused = self._fleet.paused
        self._fleet.take(record)
        if self._fleet.paused != was_paused:
            self._paused_since = at_ms if self._fleet.paused else None

    def snapshot(self, now_ms: int) -> Snapshot:
        """The snapshot at `now_ms`, Unix ms on the clock of the records of `polar.workers`."""
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
            tasks=self._sessions.tasks,
            phases={phase.value: count for phase, count in self._sessions.phases().items()},
            statuses={status.value: count for status, count in self._sessions.statuses().items()},
            groups=self._sessions.groups(),
            errors=_newest(self._errors),
            paused_since=self._paused_since,
            draining=self._fleet.draining,
            fleet_generation=self._fleet.generation,
            obstacles=sorted({f"{beat.host}: {beat.obstacle}" for beat in alive if beat.obstacle}),
        )

    def _loads(self, alive: list[Heartbeat], now_ms: int) -> list[StageLoad]:
        """The stages of each pool that has workers or unfinished sessions."""
        all_slots = [slots for beat in alive for slots in beat.stages]
        sessions = self._sessions.by_pool()
        unfinished = {pool for pool, phase in sessions if phase is not Phase.ENDED}
        loads = []
        for pool in sorted(unfinished | {slots.pool for slots in all_slots}):
            for stage in Stage:
                here = [slots for slots in all_slots if (slots.stage, slots.pool) == (stage, pool)]
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

    def _add_session_error(self, session_id: str, attempt: int, error: SessionError, at_ms: int) -> None:
        self._add_error((session_id, attempt, error.stage, error.kind.value, error.code), error.message, at_ms)

    def _add_error(self, key: tuple[str, int, str, str, str], message: str, at_ms: int) -> None:
        """Add an error once, at its first time: a fact and each later row of the session repeat it."""
        known = self._errors.get(key)
        if known is None or at_ms < known.at:
            self._errors[key] = AttemptError(*key, message[:MESSAGE_LIMIT], at_ms)
        if len(self._errors) > 2 * ERRORS:
            kept = set(_newest(self._errors))
            self._errors = {key: error for key, error in self._errors.items() if error in kept}


def _newest(errors: dict[tuple[str, int, str, str, str], AttemptError]) -> list[AttemptError]:
    return sorted(errors.values(), key=lambda error: -error.at)[:ERRORS]
