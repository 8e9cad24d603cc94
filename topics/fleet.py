"""`polar.fleet`: whether the fleet runs, and which weights it serves. Compacted; the keys are those of `key_of`.

Written by trainers, the control API and proxies; read from its beginning by proxies, stage workers, the coordinator and analytics.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

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
    offset: int | None = None
    """Of the publication; None: of the record that holds this entry."""


class PolicyVersion(msgspec.Struct, frozen=True, tag="policy_version", omit_defaults=True):
    """Key `policy`, or `policy:<engine>`: the trainer's version number of the weights that are now served."""

    version: int | None
    """None: unknown, since an update was interrupted."""
    engine: str | None = None
    """Name in the proxies' settings; None: all engines, replacing earlier versions of single engines."""
    rollbacks: list[Rollback] = []
    """The rollbacks so far, oldest first, without those that a later one implies: compaction removes their own records."""


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

    def has_abandoned(self, version: int, publication: int) -> bool:
        """Whether weights of this version, published at this offset, belong to a line that a rollback has abandoned since."""
        return any(version > rollback.version and publication < (rollback.offset or 0) for rollback in self.rollbacks)

    def has_reused(self, version: int) -> bool:
        """Whether the version may name other weights as well, which a rollback has abandoned."""
        return any(version > rollback.version for rollback in self.rollbacks)


def rollbacks_at(version: int | None, replaced: Collection[Publication]) -> list[Rollback]:
    """The `rollbacks` of a record that publishes a version in place of these publications."""
    earlier = {rollback.offset: rollback for publication in replaced for rollback in publication.rollbacks}
    found = [earlier[offset] for offset in sorted(earlier, key=lambda offset: offset or 0)]
    # After unknown weights nobody knows what was lost; an entry too many excludes no weights below it.
    if version is not None and any(each.version is None or each.version > version for each in replaced):
        found = [*(rollback for rollback in found if rollback.version < version), Rollback(version)]
    return found[-KEPT_ROLLBACKS:]


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
            case PolicyVersion(version=version, engine=engine):
                rollbacks = tuple(
                    each if each.offset is not None else Rollback(each.version, offset) for each in record.rollbacks
                )
                kept = {} if engine is None else self.policies
                self.policies = {**kept, engine: Publication(version, offset, written_ms, rollbacks)}
            case FleetState():
                if not record.counts_after(self.state):
                    return False
                self.state, self.since_ms = record, written_ms
        return True

    def policy(self, engine: str | None) -> Publication | None:
        """What was published last for an engine, or for all (None). None: nothing was."""
        return self.policies.get(engine) or self.policies.get(None)

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
