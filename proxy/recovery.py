"""Reading a claim's log back: whether its session is over, for keys older than what this proxy has seen of `polar.control`.

Read uncommitted, from the claim's `Open` to the high watermark (protocol 18, 20): a `Build` of the claim, or a newer `Open` of its
session, ends it. Its calls' prompts are not restored: the next one is written in full.
"""

from __future__ import annotations

import asyncio

from polar.keys import KeyClaims
from polar.settings import Settings
from proxy.errors import Refusal, Refused
from topics import completions, kafka
from topics.codec import Codec, DecodeError
from topics.completions import Build, Open

DEADLINE_S = 60.0
STOP_S = 2.0
AT_ONCE = 4
"""Readers at a time; others wait."""
RETRY_AFTER_S = 5
ENDS: Codec[Build | Open] = Codec(Build, Open)
"""Of a session's log, what is read here; calls are passed over by their tag."""


class Recovery:
    """Reads claims' logs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._readers = asyncio.Semaphore(AT_ONCE)

    async def is_over(self, key: KeyClaims) -> bool:
        """Whether no call of this claim counts any more. Raises Refused where the log can't be read."""
        consumer = None
        try:
            async with asyncio.timeout(DEADLINE_S), self._readers:
                consumer = kafka.consumer(self._settings, committed=False)
                await consumer.start()
                return await self._ends(consumer, key)
        except (kafka.KafkaError, TimeoutError):
            raise Refused(
                Refusal.UNAVAILABLE, "the session can't be looked up now; try again", retry_after_s=RETRY_AFTER_S
            ) from None
        finally:
            if consumer is not None:
                await kafka.stop(consumer, STOP_S)

    async def _ends(self, consumer: kafka.Consumer, key: KeyClaims) -> bool:
        partition = kafka.TopicPartition(completions.TOPIC.full_name(self._settings.namespace), key.log_partition)
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        # Where retention has passed the claim's `Open`, `getmany` goes on from the earliest that is there.
        consumer.seek(partition, key.log_offset)
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                if any(ends_claim(record.value, key) for record in records):
                    return True
        return False


def ends_claim(value: bytes | None, key: KeyClaims) -> bool:
    """Whether a record of `polar.completions` ends a claim."""
    if value is None:
        return False
    try:
        record = ENDS.decode(value)
    except DecodeError:
        return False
    match record:
        case Build():
            return record.session_id == key.session_id and record.attempt >= key.attempt
        case Open():
            return record.session_id == key.session_id and record.attempt > key.attempt
        case _:
            return False
