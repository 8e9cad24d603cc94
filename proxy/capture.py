"""Writes calls to the log: an answered call's record is acknowledged before its answer leaves, other records are sent in the background.

Invariant (guarantee 1): `answered` returns only after Kafka has acknowledged the Completion. A call that ends otherwise after its record
was sent is disowned, since the record may still arrive; it is never sent again (protocol 19). Background records are bounded in number and
time; lost ones are counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from proxy.call_kinds import MAIN, Kind
from proxy.chat import Answer, ChatRequest
from proxy.errors import Refusal, RefusalError
from proxy.metrics import ProxyMetrics
from proxy.session.claim_state import ClaimState
from proxy.session.history import Transcript
from proxy.session.logged_calls import LoggedCall
from topics import completions
from topics.completions import Disowned, RefusedRequest
from topics.log.producer import LogProducer, RecordTooLargeError, UnacknowledgedError
from topics.types.completion import CallError, CallOutcome, Completion, Medium, MessageDelta, TokenDelta
from topics.types.session import task_id_of

ACK_S = 120.0
"""For room and for the acknowledgement (protocol 19)."""
DISOWN_S = 15 * 60.0
"""For a Disowned: as long as workers tolerate Kafka's absence before they stop a session (protocol 14)."""
PENDING = 10_000
"""Background records at a time: further ones are counted and lost."""
RETRY_AFTER_S = 5

ProxyRecord = Completion | Disowned | RefusedRequest

log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One model call to make, and everything of it that the log records."""

    call_id: str
    claim: ClaimState
    dialect: str
    engine: str
    request: ChatRequest
    """The request to the engine: turns restored, sampling imposed."""
    transcript: Transcript
    """The request's messages and tools as the log spells them."""
    received_at: float
    """Unix seconds."""
    choice: int = 0
    """Index of the request's choice that this call answers."""
    lineage: dict[str, str] | None = None
    kind: Kind = MAIN
    rejects: Sequence[str] = ()
    """As in `Completion`."""
    client: str | None = None
    """As in `Completion`."""


class Capture:
    """Writes the calls of all claims."""

    def __init__(self, producer: LogProducer, metrics: ProxyMetrics) -> None:
        self._producer = producer
        self._metrics = metrics
        self._background: set[asyncio.Task[None]] = set()

    async def answered(self, spec: CallSpec, answer: Answer, media: Sequence[Medium] = ()) -> None:
        """Returns when the call is on the log; `media` are those of its whole prompt.

        Raises RefusalError if it may not be on the log, after disowning it; RecordTooLargeError: it isn't. A cancelled caller must disown
        the call itself: it knows the reason.
        """
        began = time.perf_counter()
        record = answered_record(spec, answer, media)
        try:
            await self._send(record)
        except UnacknowledgedError as error:
            log.warning("call not acknowledged", action="call_unacknowledged", call_id=spec.call_id, reason=str(error))
            self.disown(spec, "unacknowledged")
            spec.claim.fail(CallError("unrecorded", "Kafka didn't acknowledge the call"))
            raise RefusalError(
                Refusal.UNAVAILABLE, "the call could not be recorded; try again", retry_after_s=RETRY_AFTER_S
            ) from None
        self._metrics.ack_s.observe(time.perf_counter() - began)
        logged = LoggedCall(record, spec.request.messages, spec.transcript, answer.message)
        spec.claim.add(logged, answer.prompt_ids, media)

    def unanswered(self, spec: CallSpec, outcome: CallOutcome, error: CallError) -> None:
        """Records a failed or abandoned call in the background."""
        record = msgspec.structs.replace(_completion(spec, outcome, TokenDelta(b"")), error=error)
        self._start(self._record(record), record)

    def disown(self, spec: CallSpec, reason: str) -> None:
        """Records in the background that a call was never answered; `reason` as in `Disowned`."""
        self._metrics.disowned.labels(reason).inc()
        spec.claim.disown(spec.call_id)
        key = spec.claim.key
        record = Disowned(spec.call_id, key.session_id, key.claim_id, reason)
        self._start(self._disown(record), record)

    def refused(self, record: RefusedRequest) -> None:
        """Records in the background that a request was refused."""
        self._start(self._refuse(record), record)

    async def settle(self, deadline_s: float) -> None:
        """Waits for background records, then drops them."""
        if self._background:
            _, late = await asyncio.wait(self._background, timeout=deadline_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _record(self, record: Completion) -> None:
        try:
            try:
                await self._send(record)
            except RecordTooLargeError:
                # That it failed, and why, matters more than its request.
                await self._send(msgspec.structs.replace(record, messages=MessageDelta(b"[]"), tools=None))
        except (UnacknowledgedError, RecordTooLargeError) as error:
            self._lost(record, str(error))

    async def _refuse(self, record: RefusedRequest) -> None:
        try:
            await self._send(record)
        except UnacknowledgedError as error:
            self._lost(record, str(error))

    async def _disown(self, record: Disowned) -> None:
        ends = time.monotonic() + DISOWN_S
        while True:
            try:
                return await self._send(record)
            except UnacknowledgedError as error:
                if time.monotonic() > ends:
                    return self._lost(record, str(error))
            # The send may have failed at once.
            await asyncio.sleep(1.0)

    def _lost(self, record: ProxyRecord, reason: str) -> None:
        tag = str(record.__struct_config__.tag)
        self._metrics.unrecorded.labels(tag).inc()
        call_id = None if isinstance(record, RefusedRequest) else record.call_id
        log.warning(
            "record lost",
            action="record_lost",
            record=tag,
            session_id=record.session_id,
            call_id=call_id,
            reason=reason,
        )

    async def _send(self, record: ProxyRecord) -> None:
        session_id = record.session_id
        await self._producer.send(
            completions.TOPIC, record, key=session_id, task_id=task_id_of(session_id), deadline_s=ACK_S
        )

    def _start(self, work: Coroutine[Any, Any, None], record: ProxyRecord) -> None:
        if len(self._background) >= PENDING:
            work.close()
            self._lost(record, f"{PENDING} records are under way")
            return
        task = asyncio.get_running_loop().create_task(work, name=f"record {record.__struct_config__.tag}")
        self._background.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._background.discard(task)
            if task.cancelled():
                self._lost(record, "the proxy was stopped before it was acknowledged")

        task.add_done_callback(ended)


def answered_record(spec: CallSpec, answer: Answer, media: Sequence[Medium] = ()) -> Completion:
    """The record of an answered call; `media` are those of its whole prompt."""
    history = spec.claim.history
    prompt = history.prompt_delta(answer, media)
    return msgspec.structs.replace(
        _completion(spec, CallOutcome.ANSWERED, prompt),
        media=history.media_delta(media, prompt),
        sampled=answer.sampled_ids,
        logprobs=answer.logprobs,
        logprobs_mode=answer.logprobs_mode,
        answer=_encode(answer.message),
        finish_reason=answer.finish_reason,
        stop_sequence=answer.stop_sequence,
        model_served=answer.model,
        sampling=answer.sampling or spec.request.sampling,
        policy_version=answer.policy_version,
        policy_spans=list(answer.policy_spans),
        publication=answer.publication,
        realigned=answer.realigned,
        unsaid_calls=answer.unsaid_calls,
        prompt_doubt=answer.prompt_doubt,
        uncaptured=answer.uncaptured,
        **answer.stored,
    )


def _completion(spec: CallSpec, outcome: CallOutcome, prompt: TokenDelta) -> Completion:
    key, request = spec.claim.key, spec.request
    delta = spec.claim.history.transcript_delta(spec.transcript)
    return Completion(
        call_id=spec.call_id,
        session_id=key.session_id,
        attempt=key.attempt,
        claim_id=key.claim_id,
        outcome=outcome,
        dialect=spec.dialect,
        engine=spec.engine,
        received_at=int(spec.received_at * 1000),
        completed_at=int(time.time() * 1000),
        prompt=prompt,
        messages=delta.messages,
        tools=delta.tools,
        model_requested=request.model,
        sampling=request.sampling,
        reasoning_effort=request.reasoning_effort,
        tool_choice=request.offered_tools,
        kind=spec.kind.name,
        kind_rule=spec.kind.rule,
        lineage=spec.lineage,
        stream=request.stream,
        choice=spec.choice,
        stored_from=request.stored_from,
        rejects=list(spec.rejects),
        client=spec.client,
    )
