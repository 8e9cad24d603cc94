"""Attempts due deliveries and writes the results: 1. POST. 2. A dead letter, if this was the last attempt. 3. The task's next record.

Invariant: a delivery leaves `PendingDeliveries` only when its next record is acknowledged. A crash between 1 and 3 repeats the delivery,
under the same webhook id.

A failed delivery is attempted again after 5 s, 10 s, 20 s … doubling up to an hour, each ±20 %, for a day from its first failure.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import structlog

from consumers.webhooks import GROUP
from consumers.webhooks.client import Outcome, Result
from consumers.webhooks.pending import Delivery, PendingDeliveries
from topics import dead_letters, webhooks
from topics.contract.codec import encode
from topics.environment.settings import Settings
from topics.log.producer import LogProducer, UnacknowledgedError
from topics.types.errors import NotReadyError
from topics.waiting.backoff import Backoff
from topics.waiting.first_done import first_done
from topics.webhooks import Owed, Record, Settled

PAUSES = Backoff(first_s=5.0, longest_s=3600.0, jitter=0.2)
"""The jitter keeps deliveries that failed together from coming back together."""
DAY_S = 24 * 3600.0
LONGEST_WAIT_S = 60.0
"""The clock is read at least this often: a laptop's may jump."""
SEND_S = 30.0
RETRY_S = 1.0
FINISH_S = 3.0
"""For attempts in progress when the process stops."""

T = TypeVar("T")
log = structlog.get_logger()


class Sender:
    """Runs the delivery attempts of one process."""

    def __init__(
        self,
        settings: Settings,
        pending: PendingDeliveries,
        post: Callable[[Owed], Awaitable[Result]],
        producer: LogProducer,
        results: Counter[str],
    ) -> None:
        """`results` counts the attempts by result."""
        self._settings = settings
        self._pending = pending
        self._post = post
        self._log = producer
        self._results = results
        self._changed = asyncio.Event()
        self._attempts: set[asyncio.Task[None]] = set()

    def changed(self) -> None:
        """A delivery may have become due."""
        self._changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop`; attempts in progress then get 3 s. Raises what an attempt raises, which only a bug does."""
        try:
            while not stop.is_set():
                self._changed.clear()
                now_ms = int(time.time() * 1000)
                for delivery in self._pending.start_due(now_ms):
                    task = asyncio.create_task(self._attempt(delivery), name=f"webhook-{delivery.task_id}")
                    self._attempts.add(task)
                next_ms = self._pending.next_due_ms()
                wait_s = LONGEST_WAIT_S if next_ms is None else min(max(next_ms - now_ms, 0) / 1000, LONGEST_WAIT_S)
                self._attempts -= (await first_done(self._changed, stop, *self._attempts, timeout_s=wait_s)).keys()
            if self._attempts:
                await asyncio.wait(self._attempts, timeout=FINISH_S)
        finally:
            for task in self._attempts:
                task.cancel()
            await asyncio.gather(*self._attempts, return_exceptions=True)

    async def _attempt(self, delivery: Delivery) -> None:
        owed = webhooks.CODEC.decode(delivery.value)
        assert isinstance(owed, Owed), "a pending delivery is an Owed record"
        began = time.monotonic()
        result = await self._post(owed)
        following = next_record(owed, result, int(time.time() * 1000), random.random())
        self._results[following.outcome if isinstance(following, Settled) else result.outcome.value] += 1
        log.info(
            "webhook attempted",
            action=f"webhooks.{result.outcome.value}",
            task=owed.task_id,
            host=delivery.host,
            tries=following.tries,
            ms=round((time.monotonic() - began) * 1000),
            why=result.reason,
        )
        if isinstance(following, Settled) and result.outcome is not Outcome.DELIVERED:
            attempts = "1 attempt" if following.tries == 1 else f"{following.tries} attempts"
            reason = f"not delivered to {delivery.host} after {attempts}: {result.reason}"
            await self._until_acknowledged(lambda: self._dead_letter(delivery, owed, reason))
        ack = await self._until_acknowledged(
            lambda: self._log.send(
                webhooks.TOPIC, following, key=owed.task_id, partition=delivery.partition, deadline_s=SEND_S
            )
        )
        # The broker may not know the offset of an old record any more; it lies behind the record that it supersedes.
        offset = max(ack.offset, delivery.offset + 1)
        self._pending.on_written(delivery.partition, offset, following, encode(following))
        self._pending.finish(delivery, is_failing=result.outcome is Outcome.FAILED)

    async def _dead_letter(self, delivery: Delivery, owed: Owed, reason: str) -> None:
        """The record without its attempts, so that it can be sent again; the reason shows the host and no more of the URL."""
        fresh = msgspec.structs.replace(owed, tries=0, failed_ms=0, due_ms=0, why="")
        topic = webhooks.TOPIC.full_name(self._settings.namespace)
        headers = dead_letters.headers(
            reason=reason,
            field="callback_url",
            process=GROUP,
            topic=topic,
            partition=delivery.partition,
            offset=delivery.offset,
        )
        name = dead_letters.TOPIC.full_name(self._settings.namespace)
        await self._log.send_bytes(name, encode(fresh), key=owed.task_id.encode(), headers=headers, deadline_s=SEND_S)

    async def _until_acknowledged(self, send: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await send()
            except (UnacknowledgedError, NotReadyError) as error:
                log.warning("can't write yet", action="webhooks.retry", why=str(error))
                await asyncio.sleep(RETRY_S)


def next_record(owed: Owed, result: Result, now_ms: int, chance: float) -> Record:
    """The record that follows an attempt that ended at `now_ms`. `chance`: in [0, 1), for the jitter of the pause."""
    tries = owed.tries + 1
    if result.outcome is not Outcome.FAILED:
        return Settled(owed.task_id, result.outcome.value, tries)
    failed_ms = owed.failed_ms or now_ms
    pause = pause_s(tries, (now_ms - failed_ms) / 1000, result.retry_after_s, chance)
    if pause is None:
        return Settled(owed.task_id, "given_up", tries)
    due_ms = now_ms + int(pause * 1000)
    return msgspec.structs.replace(owed, tries=tries, failed_ms=failed_ms, due_ms=due_ms, why=result.reason)


def pause_s(tries: int, failed_for_s: float, retry_after_s: float, chance: float) -> float | None:
    """Seconds to wait after `tries` failures, the first of them `failed_for_s` ago; None if the last one was the last attempt.

    `retry_after_s`: the endpoint's Retry-After, 0 without one; it is honoured within the day. `chance`: in [0, 1), for the jitter.
    """
    pause = PAUSES.pause_s(tries, chance)
    remaining = DAY_S - failed_for_s
    return None if pause > remaining else min(max(pause, retry_after_s), remaining)
