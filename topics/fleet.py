"""`polar.fleet`: whether the fleet runs, and which weights it serves. Compacted; keys `state` and `policy`.

Written by trainers and the control API; read from its beginning by proxies, stage workers, the coordinator and analytics.
"""

from __future__ import annotations

import msgspec

from topics.codec import Codec
from topics.contract import Topic


class FleetState(msgspec.Struct, frozen=True, tag="fleet_state", omit_defaults=True):
    """Key `state`. Each change raises the generation by one."""

    generation: int
    paused: bool = False
    """New model calls wait, and run clocks stand still."""
    in_flight: str = "finish"
    """What becomes of calls under way at a pause: `finish`, or `abort`: they are ended at the engine and asked anew after it."""
    draining: bool = False
    """No session is given a slot any more; those in hand go on."""


class PolicyVersion(msgspec.Struct, frozen=True, tag="policy_version", omit_defaults=True):
    """Key `policy`: the integer that the trainer gives the weights now served."""

    version: int
    engine: str | None = None


FleetRecord = FleetState | PolicyVersion
RECORDS = (FleetState, PolicyVersion)
CODEC: Codec[FleetRecord] = Codec(*RECORDS)
TOPIC = Topic(
    name="fleet",
    records=RECORDS,
    key="state, policy",
    writers="trainers, control API",
    readers="proxies, stage workers, coordinator, analytics",
    retention_ms=None,
    partitions=1,
    embedded_partitions=1,
)
