"""`polar.workers`: heartbeats of every process, and the coordinators' probes, in the broker's time (LogAppendTime, protocol 12).

Read by coordinators (leases, credit), proxies (a session's owner) and the live page, from 10 s ago. One partition. Key: worker id.
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
    """Of the stage's queue, as the group assigned them."""
    claims: list[str] = []
    """Claim ids in hand, asked for or granted."""


class Backlog(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sessions of one coordinator's partitions that want a slot or have one: how coordinators share a pool's credit (protocol 7)."""

    stage: Stage
    pool: str
    priority: int
    sessions: int
    """That want a slot."""
    held: int = 0
    """That have one, or a ticket for one."""


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat", omit_defaults=True):
    """A process lives; at least every 2 s, and at once when its slots or claims change (protocol 13)."""

    worker_id: str
    role: str
    """`worker`, `proxy`, `coordinator`, …"""
    host: str
    pid: int
    stages: list[StageSlots] = []
    address: str | None = None
    """Where other proxies reach this one; None until it takes sessions."""
    fleet_generation: int = 0
    leaving: bool = False
    """The process shuts down: nothing more is to be sent its way."""
    backlogs: list[Backlog] = []
    """A coordinator's, of its partitions."""
    staged: dict[str, int] = {}
    """A coordinator's, by pool: sessions between an INIT ticket and a run claim, which `ready_limit` bounds."""
    calls: int = 0
    """A proxy's: model calls under way at its engines."""


class Probe(msgspec.Struct, frozen=True, tag="probe", omit_defaults=True):
    """A coordinator's tick, every second: where these are further than 3 s apart, leases start anew."""

    worker_id: str


Sign = Heartbeat | Probe
RECORDS = (Heartbeat, Probe)
CODEC: Codec[Sign] = Codec(*RECORDS)
TOPIC = Topic(
    name="workers",
    records=RECORDS,
    key="worker id",
    writers="every process",
    readers="coordinator, proxies, live page",
    retention_ms=HOUR_MS,
    partitions=1,
    embedded_partitions=1,
    log_append_time=True,
)
