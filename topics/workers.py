"""`polar.workers`: heartbeats of all processes and probes of coordinators, with the broker's timestamps (LogAppendTime, protocol 12).

Coordinators (leases, slots), proxies (session owners) and `polar watch` read it from 10 s ago, analytics all of it. One partition. Key:
worker id.
"""

from __future__ import annotations

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import HOUR_MS, Topic
from topics.types.session import Stage


class StageSlots(msgspec.Struct, frozen=True, omit_defaults=True):
    """One stage of one worker process."""

    stage: Stage
    pool: str
    slots: int
    free: int
    partitions: list[int]
    """Partitions of the stage's queue that the group assigned to this worker."""
    claims: list[str] = []
    """Ids of its claims, requested or granted."""


class Backlog(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sessions in one coordinator's partitions that need or have a slot; coordinators share a pool's slots by it (protocol 7)."""

    stage: Stage
    pool: str
    priority: int
    sessions: int
    """Sessions that need a slot."""
    held: int = 0
    """Sessions that have a slot, or a ticket for one."""


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat", omit_defaults=True):
    """Sent by a live process every 2 s, and at once when its slots or claims change (protocol 13)."""

    worker_id: str
    role: str
    """`worker`, `proxy`, `coordinator`, …"""
    host: str
    pid: int
    stages: list[StageSlots] = []
    address: str | None = None
    """URL at which other proxies reach this one; None until it accepts sessions."""
    fleet_generation: int = 0
    leaving: bool = False
    """The process shuts down and must get no more work."""
    backlogs: list[Backlog] = []
    """Coordinators: the backlogs of their partitions."""
    staged: dict[str, int] = {}
    """Coordinators, by pool: sessions between an INIT ticket and a run claim, which `ready_limit` bounds."""
    calls: int = 0
    """Proxies: model calls in flight at their engines."""
    obstacle: str = ""
    """Why a part of the process waits for a person, and what to do. Empty: nothing does."""


class Probe(msgspec.Struct, frozen=True, tag="probe", omit_defaults=True):
    """Sent by coordinators every second; a gap of more than 3 s between probes renews all leases."""

    worker_id: str


Sign = Heartbeat | Probe
RECORDS = (Heartbeat, Probe)
CODEC: Codec[Sign] = Codec(*RECORDS)
TOPIC = Topic(
    name="workers",
    records=RECORDS,
    key="worker id",
    writers="every process",
    readers="coordinator, proxies, polar watch, analytics",
    retention_ms=HOUR_MS,
    partitions=1,
    embedded_partitions=1,
    log_append_time=True,
)
