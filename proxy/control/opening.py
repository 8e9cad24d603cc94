"""Opens and closes sessions for people who run agents of their own (protocol 28).

A request is a fact on `polar.events`; the coordinator answers on `polar.control`. An open is sent again, unchanged, every 3 s until it is
answered, so that neither a restart of the coordinator nor a lost answer costs a sample. Invariant: an open whose caller gets no Grant is
withdrawn. `proxy/control/api.py` does keys and HTTP.
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
"""For the answer to an open; for Kafka's acknowledgement of a close."""
ASK_AGAIN_S = 3.0
CLOSED_S = 10.0
"""For the coordinator's answer to a close, which is on the log by then and will be carried out in any case."""
WITHDRAW_S = 60.0
"""For Kafka's acknowledgement of a withdrawal, in the background; without it the session ends at its TTL."""
MAX_WAITING = 1024
"""Opens and closes that wait for an answer at a time."""

Answer = Grant | Revoke

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class OpenRequest:
    """A session to open."""

    task_id: str | None
    """None: a new task for this session alone."""
    ttl_s: float
    num_samples: int | None
    mode: str
    run: str | None = None
    label: str | None = None


class SessionDeclinedError(Exception):
    """The coordinator refused; `reason` as in `Revoke`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoAnswerError(Exception):
    """No answer came in time; the message names whose."""


class SessionOpener:
    """The requests to the coordinator that are under way."""

    def __init__(self, producer: LogProducer) -> None:
        self._producer = producer
        self._waiting: dict[str, asyncio.Future[tuple[Answer, int]]] = {}
        """With the time when the answer was written, in Unix ms."""
        self._withdrawing: set[asyncio.Task[None]] = set()

    def on_control(self, record: Control, written_ms: int) -> None:
        """Applies a record of `polar.control`, written at a Unix time in ms; most answer no request of this proxy."""
        if isinstance(record, Grant | Revoke):
            waiting = self._waiting.get(record.claim_id)
            if waiting is not None and not waiting.done():
                waiting.set_result((record, written_ms))

    async def open(self, request: OpenRequest) -> tuple[Grant, int]:
        """The Grant of a new session, and when it was written, in Unix ms. Raises SessionDeclinedError, NoAnswerError."""
        claim_id = f"o-{secrets.token_hex(8)}"
        fact = SessionOpenRequested(
            f"{claim_id}.open",
            request.task_id or f"agent-{secrets.token_hex(6)}",
            claim_id,
            round(request.ttl_s * 1000),
            request.num_samples,
            request.mode,
            request.run,
            request.label,
        )
        try:
            with self._expect(claim_id) as expected:
                answer, written_ms = await self._ask(fact, expected)
        except (NoAnswerError, asyncio.CancelledError):
            self._withdraw(fact, is_own_task=request.task_id is None)
            raise
        if isinstance(answer, Grant):
            return answer, written_ms
        raise SessionDeclinedError(answer.reason)

    async def close(self, session_id: str, reward: float | None, *, is_forced: bool = False) -> None:
        """Returns when the close is on the log and isn't refused. Raises SessionDeclinedError, NoAnswerError."""
        fact = SessionCloseRequested(f"c-{secrets.token_hex(8)}", session_id, reward, is_forced)
        with self._expect(fact.fact_id) as expected:
            try:
                await self._send(fact, ANSWER_S)
            except UnacknowledgedError:
                raise NoAnswerError(f"Kafka didn't take the close within {ANSWER_S:.0f} s; try again") from None
            await asyncio.wait({expected}, timeout=CLOSED_S)
        answer, _ = expected.result() if expected.done() else (None, 0)
        if isinstance(answer, Revoke):
            raise SessionDeclinedError(answer.reason)

    async def settle(self, deadline_s: float) -> None:
        """Waits for withdrawals under way, then drops the rest: those sessions end at their TTL."""
        if self._withdrawing:
            _, late = await asyncio.wait(self._withdrawing, timeout=deadline_s)
            for task in late:
                task.cancel()

    @contextmanager
    def _expect(self, claim_id: str) -> Iterator[asyncio.Future[tuple[Answer, int]]]:
        """A future of the first record of this claim id."""
        if len(self._waiting) >= MAX_WAITING:
            raise NoAnswerError("too many sessions are being opened at this moment; try again")
        answer: asyncio.Future[tuple[Answer, int]] = asyncio.get_running_loop().create_future()
        self._waiting[claim_id] = answer
        try:
            yield answer
        finally:
            del self._waiting[claim_id]

    async def _ask(self, fact: SessionOpenRequested, answer: asyncio.Future[tuple[Answer, int]]) -> tuple[Answer, int]:
        ends = time.monotonic() + ANSWER_S
        cause = "Kafka takes no records"
        while (remaining := ends - time.monotonic()) > 0:
            try:
                await self._send(fact, remaining)
                cause = "no coordinator answers"
            except UnacknowledgedError as error:
                log.warning("open not acknowledged", action="open_unacknowledged", task=fact.task_id, why=str(error))
            await asyncio.wait({answer}, timeout=min(ASK_AGAIN_S, max(0.0, ends - time.monotonic())))
            if answer.done():
                return answer.result()
        raise NoAnswerError(f"{cause}; gave up after {ANSWER_S:.0f} s (is `polar worker coordinator` running?)")

    def _withdraw(self, fact: SessionOpenRequested, *, is_own_task: bool) -> None:
        """Cancels a task that was made for this open alone; frees the sample of any other task."""
        claim_id, task_id = fact.claim_id, fact.task_id
        withdrawal: Fact = (
            CancelRequested(f"{claim_id}.cancel", task_id)
            if is_own_task
            else SessionOpenWithdrawn(f"{claim_id}.withdrawn", task_id, claim_id)
        )
        task = asyncio.get_running_loop().create_task(self._send_withdrawal(withdrawal), name=f"withdraw {claim_id}")
        self._withdrawing.add(task)
        task.add_done_callback(self._withdrawing.discard)

    async def _send_withdrawal(self, fact: Fact) -> None:
        try:
            await self._send(fact, WITHDRAW_S)
        except UnacknowledgedError as error:
            log.warning("withdrawal lost", action="withdrawal_lost", task=events.task_of(fact), why=str(error))

    async def _send(self, fact: Fact, deadline_s: float) -> None:
        await self._producer.send(
            events.TOPIC, fact, key=events.key_of(fact), task_id=events.task_of(fact), deadline_s=deadline_s
        )
