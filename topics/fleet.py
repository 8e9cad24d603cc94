"""`polar.fleet`: whether the fleet runs, and which weights it serves. Compacted; the keys are those of `key_of`.

Written by trainers, the control API and proxies; read from its beginning by proxies, stage workers, the coordinator and analytics.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import Topic


class FleetState(msgspec.Struct, frozen=True, tag="fleet_state", omit_defaults=True):
    """Key `state`. Each change raises the generation by one."""

    generation: int
    paused: bool = False
    """New model calls wait, and run clocks stand still."""
    in_flight: str = "finish"
    """Fate of calls in flight at a pause: `finish`, or `abort`: they end at the engine and are repeated after the pause."""
    draining: bool = False
    """No session gets a slot; running stages continue."""
    by: str = ""
    """Id of the controller that wrote the state; contains its host's name."""

    def counts_after(self, known: FleetState) -> bool:
        """Whether this state, read after `known`, replaces it. Of two states of one generation the first counts, so that all readers agree,
        and the writer of the second writes again (docs/decisions.md 61)."""
        return self.generation > known.generation


class Rollback(msgspec.Struct, frozen=True, array_like=True):
    """A publication of a lower version than the one before; an array on the wire. Weights that were published before it under a higher
    version belong to an abandoned line: later weights aren't trained from them."""

    version: int
    highest: int
    """The highest version that was published before. Numbers above `version` and up to this one may name two weights; those above it are
    new."""
    offset: int | None = None
    """Of the publication; None: of the record that holds this entry."""
    engine: str | None = None
    """Whose weights were rolled back; None: those of all engines."""

    def concerns(self, version: int, engine: str) -> bool:
        """Whether weights of this version on this engine are undone, if they were published before."""
        return version > self.version and self.engine in (None, engine)


class PolicyVersion(msgspec.Struct, frozen=True, tag="policy_version", omit_defaults=True):
    """Key `policy`, or `policy:<engine>`: the trainer's version number of the weights that are now served."""

    version: int | None
    """None: unknown, since an update was interrupted."""
    engine: str | None = None
    """Name in the proxies' settings; None: all engines, replacing earlier versions of single engines."""
    rollbacks: list[Rollback] = []
    """The rollbacks so far, oldest first, without those that a later one implies: compaction removes their own records."""
    last_known: int | None = None
    """With an unknown version: the one before. A later version below it is a rollback."""


class EngineProcess(msgspec.Struct, frozen=True, tag="engine_process", omit_defaults=True):
    """Key `process:<engine>:<url>`: a process of an inference server, as a proxy found it behind a URL. It can't serve weights that were
    published before it started."""

    engine: str
    """Name in the proxies' settings."""
    url: str
    started_ms: int | None = None
    """Start of the process, Unix ms by its host's clock; None: the server doesn't report it."""
    since: int | None = None
    """Offset of the first record with this start; None: this is the first. A publication with a higher offset came when it ran."""
    names_weights: bool = False
    """It has reported the policy version of tokens."""


FleetRecord = FleetState | PolicyVersion | EngineProcess
KEPT_ROLLBACKS = 100
"""Number of rollbacks in a record. Weights from before the oldest one are too old for any trainer."""


def key_of(record: FleetRecord) -> str:
    """The key under which a record is written."""
    match record:
        case FleetState():
            return "state"
        case PolicyVersion(engine=engine):
            return "policy" if engine is None else f"policy:{engine}"
        case EngineProcess(engine=engine, url=url):
            return f"process:{engine}:{url}"


class Publication(NamedTuple):
    """Weights that were published: the number that a trainer gave them, and where the record lies. A number may be published again."""

    version: int | None
    offset: int
    """Of the record that published them, equal for every reader of the topic."""
    written_ms: int = 0
    """Unix ms: timestamp of that record."""
    rollbacks: tuple[Rollback, ...] = ()
    """Those of its record, each with its offset."""
    engine: str | None = None
    """Whose weights; None: those of all engines."""
    last_known: int | None = None
    """As in the record."""

    @classmethod
    def of(cls, record: PolicyVersion, offset: int, written_ms: int) -> Self:
        """What a record at this offset published."""
        rollbacks = [
            each if each.offset is not None else msgspec.structs.replace(each, offset=offset)
            for each in record.rollbacks
        ]
        return cls(record.version, offset, written_ms, tuple(rollbacks), record.engine, record.last_known)

    def has_abandoned(self, version: int, publication: int, engine: str) -> bool:
        """Whether an engine's weights of this version, published at this offset, belong to a line that a rollback has abandoned since."""
        return any(each.concerns(version, engine) and publication < (each.offset or 0) for each in self.rollbacks)

    def has_reused(self, version: int, engine: str) -> bool:
        """Whether the version may name other weights of this engine as well, which a rollback has abandoned."""
        return any(each.concerns(version, engine) and version <= each.highest for each in self.rollbacks)


class FleetView:
    """The fleet's state and policy versions, as the records read so far say; before any record, the fleet runs."""

    def __init__(self) -> None:
        self.state = FleetState(generation=0)
        self.since_ms: int | None = None
        """Unix ms: when the state was written; None before the first."""
        self.policies: dict[str | None, Publication] = {}
        """By engine; that of None holds for all engines that aren't named."""

    def take(self, record: FleetRecord, *, offset: int = 0, written_ms: int = 0) -> bool:
        """Take in the next record of the topic; False if it is a state that doesn't count. Processes are for proxies alone.

        `offset` and `written_ms`, its timestamp, are for readers of `policies` and `since_ms`.
        """
        match record:
            case PolicyVersion(engine=engine):
                kept = {} if engine is None else self.policies
                self.policies = {**kept, engine: Publication.of(record, offset, written_ms)}
            case FleetState():
                if not record.counts_after(self.state):
                    return False
                self.state, self.since_ms = record, written_ms
        return True

    def policy(self, engine: str | None) -> Publication | None:
        """What was published last for an engine, or for all (None). None: nothing was."""
        return self.policies.get(engine) or self.policies.get(None)

    def replaced(self, engine: str | None) -> dict[str | None, Publication]:
        """What a publication for one engine, or for all (None), replaces."""
        if engine is None:
            return self.policies
        current = self.policy(engine)
        return {} if current is None else {engine: current}

    def publishing(self, version: int | None, engine: str | None = None) -> PolicyVersion:
        """The record that publishes a version for one engine, or for all (None); a version of None: nobody knows it."""
        replaced = self.replaced(engine).values()
        before = [each.last_known if each.version is None else each.version for each in replaced]
        last = max((each for each in before if each is not None), default=None)
        # By offset: engines that were published for together have rollbacks in common.
        rollbacks = sorted({each for one in replaced for each in one.rollbacks}, key=lambda each: each.offset or 0)
        if version is not None and last is not None and last > version:
            highest = max([last, *(each.highest for each in rollbacks)])
            rollbacks = [each for each in rollbacks if each.version < version or engine not in (None, each.engine)]
            rollbacks.append(Rollback(version, highest, engine=engine))
        return PolicyVersion(version, engine, rollbacks[-KEPT_ROLLBACKS:], last if version is None else None)

    @property
    def generation(self) -> int:
        """Echoed in heartbeats."""
        return self.state.generation

    @property
    def paused(self) -> bool:
        """Whether model calls wait and run clocks stand still."""
        return self.state.paused

    @property
    def draining(self) -> bool:
        """Whether no session is given a slot."""
        return self.state.draining


RECORDS = (FleetState, PolicyVersion, EngineProcess)
CODEC: Codec[FleetRecord] = Codec(*RECORDS)
TOPIC = Topic(
    name="fleet",
    records=RECORDS,
    key="state, policy, policy:<engine>, process:<engine>:<url>",
    writers="trainers, control API, proxies",
    readers="proxies, stage workers, coordinator, analytics",
    retention_ms=None,
    partitions=1,
    embedded_partitions=1,
)
