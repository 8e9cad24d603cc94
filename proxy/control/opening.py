"""Asks for opened sessions and for their ends, on behalf of people with agents of their own (protocol 28).

A fact asks, and the coordinator answers on `polar.control`: an open is asked again, unchanged, every 3 s until it is answered, so that
neither a restart of the coordinator nor a lost answer costs a sample. Invariant: an open that ends here without a Grant in its caller's
hands is withdrawn. Keys and HTTP are `api`'s.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from topics import events
from topics.control import Control, Grant, Revoke
from topics.events import CancelRequested, Fact, SessionCloseRequested, SessionOpenRequested, SessionOpenWithdrawn
from topics.log.producer import LogProducer, UnacknowledgedError

ANSWER_S = 30.0
"""For an open's answer; for Kafka's acknowledgement of a close."""
ASK_AGAIN_S = 3.0
CLOSED_S = 10.0
"""For what the coordinator says of a close. It lies on the log by then and will be honoured, whoever waits."""
WITHDRAW_S = 60.0
ASKING = 1024
"""Questions open at a time."""

Answer = Grant | Revoke

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class OpenRequest:
    """A session that someone wants."""

    task_id: str | None
    """None: a task of its own."""
    ttl_s: float
    num_samples: int | None
    mode: str


class SessionDeclinedError(Exception):
    """The coordinator said no; `reason` as in `Revoke`, `task_id` that of the wish or of the session."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoAnswerError(Exception):
    """Nobody answered in time; the message says who."""


class SessionOpener:
    """Questions under way to the coordinator."""

    def __init__(self, producer: LogProducer) -> None:
        self._producer = producer
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._withdrawing: set[asyncio.Task[None]] = set()

    def on_control(self, record: Control) -> None:
        """Takes in a record of `polar.control`; most answer nobody here."""
        match record:
            case Grant() | Revoke():
                waiting = self._waiting.get(record.claim_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(record)
            case _:
                pass

    async def open(self, wish: OpenRequest) -> Grant:
        """A session's Grant. Raises SessionDeclinedError, NoAnswerError."""
        claim_id = f"o-{secrets.token_hex(8)}"
        fact = SessionOpenRequested(
            f"{claim_id}.open",
            wish.task_id or f"agent-{secrets.token_hex(6)}",
            claim_id,
            round(wish.ttl_s * 1000),
            wish.num_samples,
            wish.mode,
        )
        try:
            with self._asking(claim_id) as answer:
                told = await self._ask(fact, answer)
        except (NoAnswerError, asyncio.CancelledError):
            self._withdraw(fact, is_own_task=wish.task_id is None)
            raise
        if isinstance(told, Grant):
            return told
        raise SessionDeclinedError(told.reason)

    async def close(self, session_id: str, reward: float | None) -> None:
        """Returns when the close is on the log and isn't refused. Raises SessionDeclinedError, NoAnswerError."""
        fact = SessionCloseRequested(f"c-{secrets.token_hex(8)}", session_id, reward)
        with self._asking(fact.fact_id) as answer:
            try:
                await self._send(fact, ANSWER_S)
            except UnacknowledgedError:
                raise NoAnswerError(f"Kafka didn't take the close within {ANSWER_S:.0f} s; try again") from None
            await asyncio.wait({answer}, timeout=CLOSED_S)
        told = answer.result() if answer.done() else None
        if isinstance(told, Revoke):
            raise SessionDeclinedError(told.reason)

    async def settle(self, deadline_s: float) -> None:
        """Waits for withdrawals under way, then drops them: those sessions end at their TTL."""
        if self._withdrawing:
            _, late = await asyncio.wait(self._withdrawing, timeout=deadline_s)
            for task in late:
                task.cancel()

    @contextmanager
    def _asking(self, claim_id: str) -> Iterator[asyncio.Future[Answer]]:
        """The answer to come: the first record of this claim id."""
        if len(self._waiting) >= ASKING:
            raise NoAnswerError("too many sessions are being opened at this moment; try again")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[claim_id] = answer
        try:
            yield answer
        finally:
            del self._waiting[claim_id]

    async def _ask(self, fact: SessionOpenRequested, answer: asyncio.Future[Answer]) -> Answer:
        ends = time.monotonic() + ANSWER_S
        who = "Kafka takes no records"
        while (left := ends - time.monotonic()) > 0:
            try:
                await self._send(fact, left)
                who = "no coordinator answers"
            except UnacknowledgedError as error:
                log.warning("open not acknowledged", action="open_unacknowledged", task=fact.task_id, why=str(error))
            await asyncio.wait({answer}, timeout=min(ASK_AGAIN_S, max(0.0, ends - time.monotonic())))
            if answer.done():
                return answer.result()
        raise NoAnswerError(f"{who}; gave up after {ANSWER_S:.0f} s (is `polar worker coordinator` running?)")

    def _withdraw(self, fact: SessionOpenRequested, *, is_own_task: bool) -> None:
        """A task that was made for this open alone is cancelled; of another the sample is free again."""
        claim_id, task_id = fact.claim_id, fact.task_id
        withdrawal: Fact = (
            CancelRequested(f"{claim_id}.cancel", task_id)
            if is_own_task
            else SessionOpenWithdrawn(f"{claim_id}.withdrawn", task_id, claim_id)
        )
        task = asyncio.get_running_loop().create_task(self._send_beside(withdrawal), name=f"withdraw {claim_id}")
        self._withdrawing.add(task)
        task.add_done_callback(self._withdrawing.discard)

    async def _send_beside(self, fact: Fact) -> None:
        try:
            await self._send(fact, WITHDRAW_S)
        except UnacknowledgedError as error:
            log.warning("withdrawal lost", action="withdrawal_lost", task=events.task_of(fact), why=str(error))

    async def _send(self, fact: Fact, deadline_s: float) -> None:
        await self._producer.send(
            events.TOPIC, fact, key=events.key_of(fact), task_id=events.task_of(fact), deadline_s=deadline_s
        )
