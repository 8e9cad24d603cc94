"""Calls to the log: an answered call's record is acknowledged before its answer leaves, others are recorded beside the way.

Invariant (guarantee 1): `answered` returns only after Kafka has acknowledged the Completion. A call that ends otherwise once its record was
sent is disowned, since the record may still arrive; it is never sent again (protocol 19). What is sent beside the way is bounded and has
a budget; what is lost of it is counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from proxy.call_kinds import MAIN, Kind
from proxy.chat import Answer, ChatRequest
from proxy.errors import Refusal, RefusalError
from proxy.metrics import Metrics
from proxy.session.claims import ClaimState
from proxy.session.history import Transcript, TranscriptDelta
from topics import completions
from topics.completions import Disowned
from topics.log.producer import LogProducer, RecordTooLargeError, UnacknowledgedError
from topics.types.completion import CallError, CallOutcome, Completion, MessageDelta, TokenDelta
from topics.types.session import task_id_of

ACK_S = 120.0
"""For room and for the acknowledgement (protocol 19)."""
DISOWN_S = 15 * 60.0
"""For a Disowned: as long as workers bear with Kafka's absence before they stop a session (protocol 14)."""
PENDING = 10_000
"""Records that may be under way beside the calls; what exceeds it is counted and lost."""
RETRY_AFTER_S = 5

log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class CallSpec:
    """A call on its way."""

    call_id: str
    claim: ClaimState
    dialect: str
    engine: str
    request: ChatRequest
    """As the engine is asked: turns restored, sampling imposed."""
    told: Transcript
    """The same messages and tools, as the log spells them."""
    received_at: float
    """Unix seconds."""
    choice: int = 0
    """Which of the request's choices."""
    lineage: dict[str, str] | None = None
    kind: Kind = MAIN
    """What the call is for."""


class Capture:
    """Writes the calls of all claims."""

    def __init__(self, producer: LogProducer, metrics: Metrics) -> None:
        self._producer = producer
        self._metrics = metrics
        self._beside: set[asyncio.Task[None]] = set()

    async def answered(self, asked: CallSpec, answer: Answer) -> None:
        """Return when the call is on the log. Raises RefusalError if it may not be (the call is disowned), RecordTooLargeError if it isn't.

        Cancelled, it leaves disowning to the caller, who knows why.
        """
        began = time.perf_counter()
        written = asked.claim.history.write(asked.told)
        record = _answered(asked, written, answer)
        try:
            await self._send(record, ACK_S)
        except UnacknowledgedError as error:
            log.warning("call not acknowledged", action="call_unacknowledged", call_id=asked.call_id, reason=str(error))
            self.disown(asked, "unacknowledged")
            raise RefusalError(
                Refusal.UNAVAILABLE, "the call could not be recorded; try again", retry_after_s=RETRY_AFTER_S
            ) from None
        self._metrics.ack_s.observe(time.perf_counter() - began)
        asked.claim.acknowledged(asked.call_id, asked.engine, asked.request, asked.told, answer)

    def unanswered(self, asked: CallSpec, outcome: CallOutcome, error: CallError) -> None:
        """Records a failed or abandoned call, beside the way."""
        self._later(self._record(_unanswered(asked, outcome, error)), "completion", asked.call_id)

    def disown(self, asked: CallSpec, reason: str) -> None:
        """Says on the log that a call was never answered, beside the way; `reason` as in `Disowned`."""
        self._metrics.disowned.labels(reason).inc()
        asked.claim.undelivered(asked.call_id)
        key = asked.claim.key
        self._later(
            self._disown(Disowned(asked.call_id, key.session_id, key.claim_id, reason)), "disowned", asked.call_id
        )

    async def settle(self, deadline_s: float) -> None:
        """Waits for what is under way beside the calls, then drops it."""
        if self._beside:
            _, late = await asyncio.wait(self._beside, timeout=deadline_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _record(self, record: Completion) -> None:
        try:
            try:
                await self._send(record, ACK_S)
            except RecordTooLargeError:
                # That it failed, and why, matters more than what was asked.
                bare = msgspec.structs.replace(record, messages=MessageDelta(b"[]"), tools=None)
                await self._send(bare, ACK_S)
        except (UnacknowledgedError, RecordTooLargeError) as error:
            self._lost("completion", record.call_id, str(error))

    async def _disown(self, record: Disowned) -> None:
        ends = time.monotonic() + DISOWN_S
        while True:
            try:
                await self._send(record, ACK_S)
                return
            except UnacknowledgedError as error:
                if time.monotonic() > ends:
                    self._lost("disowned", record.call_id, str(error))
                    return
            # The send may have failed at once.
            await asyncio.sleep(1.0)

    def _lost(self, what: str, call_id: str, reason: str) -> None:
        self._metrics.unrecorded.labels(what).inc()
        log.warning("record lost", action="record_lost", record=what, call_id=call_id, reason=reason)

    async def _send(self, record: Completion | Disowned, deadline_s: float) -> None:
        session_id = record.session_id
        await self._producer.send(
            completions.TOPIC, record, key=session_id, task_id=task_id_of(session_id), deadline_s=deadline_s
        )

    def _later(self, work: Coroutine[Any, Any, None], what: str, call_id: str) -> None:
        if len(self._beside) >= PENDING:
            work.close()
            self._lost(what, call_id, f"{PENDING} records are under way")
            return
        task = asyncio.get_running_loop().create_task(work, name=f"record {what}")
        self._beside.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._beside.discard(task)
            if task.cancelled():
                self._lost(what, call_id, "the proxy was stopped before it was acknowledged")

        task.add_done_callback(ended)


def _answered(asked: CallSpec, written: TranscriptDelta, answer: Answer) -> Completion:
    return msgspec.structs.replace(
        _completion(asked, written, CallOutcome.ANSWERED, asked.claim.history.prompt(answer)),
        sampled=answer.sampled_ids,
        logprobs=answer.logprobs,
        logprobs_mode=answer.logprobs_mode,
        answer=_encode(answer.message),
        finish_reason=answer.finish_reason,
        stop_sequence=answer.stop_sequence,
        model_served=answer.model,
        policy_version=answer.policy_version,
        policy_spans=list(answer.policy_spans),
        realigned=answer.realigned,
        unsaid_calls=answer.unsaid_calls,
    )


def _unanswered(asked: CallSpec, outcome: CallOutcome, error: CallError) -> Completion:
    written = asked.claim.history.write(asked.told)
    return msgspec.structs.replace(_completion(asked, written, outcome, TokenDelta(b"")), error=error)


def _completion(asked: CallSpec, written: TranscriptDelta, outcome: CallOutcome, prompt: TokenDelta) -> Completion:
    key, request = asked.claim.key, asked.request
    return Completion(
        call_id=asked.call_id,
        session_id=key.session_id,
        attempt=key.attempt,
        claim_id=key.claim_id,
        outcome=outcome,
        dialect=asked.dialect,
        engine=asked.engine,
        received_at=int(asked.received_at * 1000),
        completed_at=int(time.time() * 1000),
        prompt=prompt,
        messages=written.messages,
        tools=written.tools,
        model_requested=request.model,
        sampling=request.sampling,
        reasoning_effort=request.reasoning_effort,
        tool_choice=request.offered_tools,
        kind=asked.kind.name,
        kind_rule=asked.kind.rule,
        lineage=asked.lineage,
        stream=request.stream,
        choice=asked.choice,
        stored_from=request.stored_from,
    )
