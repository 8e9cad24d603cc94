"""`polar.fleet`: whether the fleet runs, and which weights it serves. Compacted; keys `state`, `policy` and `policy:<engine>`.

Written by trainers and the control API; read from its beginning by proxies, stage workers, the coordinator and analytics.
"""

from __future__ import annotations

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


class PolicyVersion(msgspec.Struct, frozen=True, tag="policy_version", omit_defaults=True):
    """Key `policy`, or `policy:<engine>`: the trainer's version number of the weights that are now served."""

    version: int | None
    """None: unknown, since an update was interrupted."""
    engine: str | None = None
    """Name in the proxies' settings; None: all engines, replacing earlier versions of single engines."""


FleetRecord = FleetState | PolicyVersion


def key_of(record: FleetRecord) -> str:
    """The key under which a record is written."""
    if isinstance(record, FleetState):
        return "state"
    return "policy" if record.engine is None else f"policy:{record.engine}"


class Policy(NamedTuple):
    """The weights that were published last."""

    version: int | None
    offset: int
    """Of the record that published them, equal for every reader of the topic."""


class FleetView:
    """The fleet's state and policy versions, as the records read so far say; before any record, the fleet runs."""

    def __init__(self) -> None:
        self.state = FleetState(generation=0)
        self.since_ms: int | None = None
        """Unix ms: when the state was written; None before the first."""
        self.policies: dict[str | None, Policy] = {}
        """By engine; that of None holds for all engines that aren't named."""

    def take(self, record: FleetRecord, *, offset: int = 0, written_ms: int = 0) -> bool:
        """Take in the next record of the topic; False if it is a state that doesn't count.

        `offset` and `written_ms`, its timestamp, are for readers of `policies` and `since_ms`.
        """
        if isinstance(record, PolicyVersion):
            kept = {} if record.engine is None else self.policies
            self.policies = {**kept, record.engine: Policy(record.version, offset)}
        elif record.counts_after(self.state):
            self.state, self.since_ms = record, written_ms
        else:
            return False
        return True

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


RECORDS = (FleetState, PolicyVersion)
CODEC: Codec[FleetRecord] = Codec(*RECORDS)
TOPIC = Topic(
    name="fleet",
    records=RECORDS,
    key="state, policy, policy:<engine>",
    writers="trainers, control API",
    readers="proxies, stage workers, coordinator, analytics",
    retention_ms=None,
    partitions=1,
    embedded_partitions=1,
)
