"""Whether this host agrees with the running system: its clock with Kafka's, and its keys file with the one that workers use.

Only reads. An answer of None means that nothing on the log tells.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import get_args

from topics import events, workers
from topics.environment.claim_keys import HEADER, ClaimKeys, ticket_of
from topics.environment.settings import Settings
from topics.log.follow import Follower, Since
from topics.log.kafka import Record
from topics.types.errors import NotReadyError
from topics.waiting.first_done import first_done

BEAT_S = 6.0
"""A live process sends a heartbeat every 2 s, a coordinator a probe every second."""
FACTS_S = 600.0
"""Facts of this time are compared: a secret that was retired before doesn't matter."""
READ_S = 15.0
"""Deadline for reading them."""


async def clock_ahead_s(settings: Settings) -> float | None:
    """Seconds that this host's clock is ahead of the broker's, or behind if negative; accurate to about a second. None: nobody writes.

    Brokers stamp heartbeats themselves. Raises NotReadyError without Kafka or the topic.
    """
    ahead_s: list[float] = []
    has_come = asyncio.Event()

    def on_record(_: workers.Sign, envelope: Record) -> None:
        ahead_s.append(time.time() - envelope.timestamp / 1000)
        has_come.set()

    follower = Follower(settings, workers.TOPIC, on_record, since=Since.END)
    await follower.start()
    try:
        await first_done(has_come, timeout_s=BEAT_S)
    finally:
        await follower.stop()
    return ahead_s[0] if ahead_s else None


async def facts_signed_here(settings: Settings, keys_file: Path) -> tuple[int, int] | None:
    """The number of recent signed facts that this keys file verifies, and that of all. None: there are none, or Kafka can't be read.

    One that is verified is enough: anyone may write facts that are not. Raises FileNotFoundError or ValueError for the keys file.
    """
    keys = ClaimKeys(keys_file)
    verified = signed = 0

    def on_record(fact: events.Fact, envelope: Record) -> None:
        nonlocal verified, signed
        if not isinstance(fact, get_args(events.ClaimFact)) or all(name != HEADER for name, _ in envelope.headers):
            return
        named = ticket_of(fact.claim_id)
        if named is None:
            return
        stage, ticket = named
        signed += 1
        verified += keys.verifies(
            envelope.headers,
            envelope.value or b"",
            session_id=fact.session_id,
            attempt=fact.attempt,
            stage=stage,
            ticket=ticket,
        )

    follower = Follower(settings, events.TOPIC, on_record, since=Since.ago(FACTS_S))
    try:
        await follower.start(READ_S)
    except NotReadyError:
        return None
    finally:
        await follower.stop()
    return (verified, signed) if signed else None
