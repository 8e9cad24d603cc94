"""Tries what is owed, and puts what came of it on the log: 1. POST. 2. A dead letter, where that was the last. 3. The debt's next state.

Invariant: a debt is off only when its next record is acknowledged. A crash between 1 and 3 tells the endpoint again, under the same id.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from consumers.webhooks import GROUP
from consumers.webhooks.backoff import pause_s
from consumers.webhooks.debts import Debt, Debts
from consumers.webhooks.post import Answer, Verdict
from topics import dead_letters, webhooks
from topics.contract.codec import encode
from topics.environment.settings import Settings
from topics.log.producer import LogProducer, Unacknowledged
from topics.types.errors import NotReady
from topics.waiting.first_done import first_done
from topics.webhooks import Owed, Record, Settled

LONGEST_WAIT_S = 60.0
"""Without a look at the clock: a laptop's may jump."""
SEND_S = 30.0
RETRY_S = 1.0
FINISH_S = 3.0
"""On a stop, for what is under way."""

T = TypeVar("T")
log = structlog.get_logger()


class Courier:
    """Runs the tries of one process."""

    def __init__(
        self,
        settings: Settings,
        debts: Debts,
        post: Callable[[Owed], Awaitable[Answer]],
        producer: LogProducer,
        tries: Counter[str],
    ) -> None:
        """`tries`: counted in, by what they came to."""
        self._settings = settings
        self._debts = debts
        self._post = post
        self._log = producer
        self._counted = tries
        self._changed = asyncio.Event()
        self._tries: set[asyncio.Task[None]] = set()

    def changed(self) -> None:
        """Something may be due that wasn't before."""
        self._changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then what is under way gets 3 s. Raises what a try raises: only our own fault."""
        try:
            while not stop.is_set():
                self._changed.clear()
                now_ms = int(time.time() * 1000)
                for debt in self._debts.start(now_ms):
                    self._tries.add(asyncio.create_task(self._settle(debt), name=f"webhook-{debt.task_id}"))
                next_ms = self._debts.next_due_ms()
                wait_s = LONGEST_WAIT_S if next_ms is None else min(max(next_ms - now_ms, 0) / 1000, LONGEST_WAIT_S)
                self._tries -= (await first_done(self._changed, stop, *self._tries, timeout_s=wait_s)).keys()
            if self._tries:
                await asyncio.wait(self._tries, timeout=FINISH_S)
        finally:
            for task in self._tries:
                task.cancel()
            await asyncio.gather(*self._tries, return_exceptions=True)

    async def _settle(self, debt: Debt) -> None:
        """One debt's try."""
        owed = webhooks.CODEC.decode(debt.value)
        assert isinstance(owed, Owed), "only what is owed is a debt"
        began = time.monotonic()
        answer = await self._post(owed)
        after = following(owed, answer, int(time.time() * 1000), random.random())
        self._counted[after.outcome if isinstance(after, Settled) else answer.verdict.value] += 1
        log.info(
            "webhook tried",
            action=f"webhooks.{answer.verdict.value}",
            task=owed.task_id,
            host=debt.host,
            tries=after.tries,
            ms=round((time.monotonic() - began) * 1000),
            why=answer.why,
        )
        if isinstance(after, Settled) and answer.verdict is not Verdict.DELIVERED:
            tried = "1 try" if after.tries == 1 else f"{after.tries} tries"
            await self._until_acknowledged(lambda: self._bury(debt, owed, f"after {tried}: {answer.why}"))
        ack = await self._until_acknowledged(
            lambda: self._log.send(webhooks.TOPIC, after, key=owed.task_id, partition=debt.partition, deadline_s=SEND_S)
        )
        # An offset that the broker no longer knew lies behind the one that it supersedes, wherever that is.
        self._debts.write(debt.partition, max(ack.offset, debt.offset + 1), after, encode(after))
        self._debts.finished(debt, ill=answer.verdict is Verdict.FAILED)

    async def _bury(self, debt: Debt, owed: Owed, why: str) -> None:
        """What was owed, as on its first day, so that it can be put back; the reason names the host and no more of the URL."""
        fresh = Owed(owed.task_id, owed.url, owed.ended_ms, owed.rewards, owed.statuses, owed.output)
        topic = webhooks.TOPIC.full_name(self._settings.namespace)
        headers = dead_letters.headers(
            reason=f"{debt.host} was not told, {why}",
            field="callback_url",
            process=GROUP,
            topic=topic,
            partition=debt.partition,
            offset=debt.offset,
        )
        name = dead_letters.TOPIC.full_name(self._settings.namespace)
        await self._log.send_bytes(name, encode(fresh), key=owed.task_id.encode(), headers=headers, deadline_s=SEND_S)

    async def _until_acknowledged(self, send: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await send()
            except (Unacknowledged, NotReady) as error:
                log.warning("can't write yet", action="webhooks.retry", why=str(error))
                await asyncio.sleep(RETRY_S)


def following(owed: Owed, answer: Answer, now_ms: int, chance: float) -> Record:
    """The record that follows a try that ended at `now_ms`. `chance`: in [0, 1), where in the spread of the pause."""
    tries = owed.tries + 1
    if answer.verdict is not Verdict.FAILED:
        return Settled(owed.task_id, answer.verdict.value, tries)
    failed_ms = owed.failed_ms or now_ms
    pause = pause_s(tries, (now_ms - failed_ms) / 1000, answer.retry_after_s, chance)
    if pause is None:
        return Settled(owed.task_id, "given_up", tries)
    return Owed(
        owed.task_id,
        owed.url,
        owed.ended_ms,
        owed.rewards,
        owed.statuses,
        owed.output,
        tries,
        failed_ms,
        now_ms + int(pause * 1000),
        answer.why,
    )
