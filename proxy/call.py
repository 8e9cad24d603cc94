"""One call: wait for the fleet and for room, ask the engine, write the call to the log; only then may the answer leave.

A pause of the fleet is no end of a call: what a pause ends at the engine is asked again after it, and the harness only waits. The call runs
as a task of its own, apart from the harness's connection: if the harness hangs up, or the key is closed, the call ends with a reason and
the log gets its record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import structlog

from proxy.blob_writer import Batch
from proxy.capture import ACK_S, CallSpec, Capture
from proxy.chat import Answer
from proxy.engines.pool import Engines
from proxy.errors import EngineError, Refusal, RefusalError, refusal_of
from proxy.fleet import HELD_S, Fleet, FleetPausedError
from proxy.media import PromptMedia
from proxy.metrics import ProxyMetrics
from proxy.policy import VersionAttribution
from proxy.prompt_doubts import PromptDoubts
from proxy.replay_store import ReplayStore
from proxy.session.endings import RETRY_AFTER_S, Ending
from topics.log.producer import LogProducer, RecordTooLargeError, UnacknowledgedError
from topics.types.completion import CallError, CallOutcome, Medium

log = structlog.get_logger(__name__)


class CallTask:
    """A call in flight. `answer` is a task that returns the answer, or the error for the harness."""

    def __init__(self, pipeline: Pipeline, spec: CallSpec, size: int) -> None:
        self.spec = spec
        self.ended: Ending | None = None
        self._in_flight = spec.claim.in_flight
        self._in_flight.add(self)
        self.answer = asyncio.get_running_loop().create_task(pipeline.run(self, size), name=spec.call_id)
        # Not in the coroutine: a task that is cancelled before its first step never enters it.
        self.answer.add_done_callback(lambda _: self._in_flight.discard(self))

    def end(self, reason: Ending) -> None:
        """Ends the call at whatever step it is; the first reason counts."""
        if self.ended is None:
            self.ended = reason
            self.answer.cancel()


class Pipeline:
    """The steps of every call."""

    def __init__(
        self,
        engines: Engines,
        producer: LogProducer,
        capture: Capture,
        fleet: Fleet,
        versions: VersionAttribution,
        metrics: ProxyMetrics,
        media: PromptMedia,
        replay: ReplayStore | None = None,
    ) -> None:
        """`replay`: None if no engine captures anything."""
        self.engines = engines
        self._producer = producer
        self._capture = capture
        self._fleet = fleet
        self._metrics = metrics
        self._media = media
        self._replay = replay
        self._versions = versions
        self._prompts = PromptDoubts(metrics)

    async def run(self, call: CallTask, size: int) -> Answer | RefusalError:
        """An answer that is on the log, or the error in its place; `size` is the request's, in bytes."""
        self._metrics.in_flight.inc()
        try:
            answer, media = await self._ask_engine(call, size)
            await self._write(call, answer, media)
            self._count(call, CallOutcome.ANSWERED)
            return answer
        except RefusalError as refused:
            return replace(refused, is_recorded=True)  # a copy, without traceback
        except asyncio.CancelledError:
            if call.ended is None:
                raise
            return call.ended.refusal
        except Exception as error:
            self._unanswered(call, CallOutcome.FAILED, CallError("proxy_fault", type(error).__name__))
            raise  # logged and answered where requests are answered
        finally:
            self._metrics.in_flight.dec()

    def undelivered(self, call: CallTask) -> None:
        """Disowns a call that is on the log, but whose harness went away before it had the answer."""
        self._capture.disown(call.spec, Ending.HUNG_UP.disowned_reason)

    async def _ask_engine(self, call: CallTask, size: int) -> tuple[Answer, list[Medium]]:
        """The engine's answer with its policy versions, and the media of its prompt, all stored.

        Without an answer, or if the call ends before, it is recorded as failed or abandoned.
        """
        spec = call.spec
        try:
            return await self._stored(call.spec, await self._sample(call, size))
        except EngineError as error:
            log.warning("call failed", action="call_failed", call_id=spec.call_id, code=error.code, status=error.status)
            self._unanswered(call, CallOutcome.FAILED, error.as_call_error())
            raise refusal_of(error) from None
        except asyncio.CancelledError:
            self._unanswered(call, CallOutcome.ABANDONED, (call.ended or Ending.STOPPED).call_error)
            if call.ended is Ending.HUNG_UP and not self.engines.for_model(spec.request.model).healthy:
                spec.claim.fail(CallError("unreachable", "the harness gave up while no server of the engine answered"))
            raise

    async def _sample(self, call: CallTask, size: int) -> Answer:
        """The answer of the first try that no pause ended."""
        request = call.spec.request
        engine = self.engines.for_model(request.model)
        held_until = asyncio.get_running_loop().time() + HELD_S
        was_held = False
        while True:
            was_held |= await self._wait_for_fleet(call, held_until)
            await self._wait_for_room(call, size)
            under_way = self._fleet.call(engine.name)
            began = time.perf_counter()
            try:
                answer = await engine.complete(
                    request, call.spec.claim.key.session_id, under_way=under_way, patiently=was_held
                )
            except FleetPausedError:
                was_held = True
                continue
            self._metrics.engine_s.observe(time.perf_counter() - began)
            self._prompts.take(engine.name, answer)
            return self._versions.attribute(engine.name, answer, under_way)

    async def _stored(self, spec: CallSpec, answer: Answer) -> tuple[Answer, list[Medium]]:
        """The answer and the media of its prompt, with references to what was stored of both."""
        batch = Batch()
        media = self._media.of(spec.request, spec.transcript, spec.claim.history, answer, batch)
        if self._replay is None:
            return answer, await media
        return await asyncio.gather(self._replay.stored(spec.call_id, answer, batch), media)

    async def _wait_for_fleet(self, call: CallTask, until: float) -> bool:
        """Returns when the fleet runs: whether it was paused."""
        try:
            return await self._fleet.runs(until)
        except RefusalError as refused:
            self._unanswered(call, CallOutcome.FAILED, CallError("paused", refused.message))
            raise

    async def _wait_for_room(self, call: CallTask, size: int) -> None:
        if self._producer.has_room(size):
            return
        try:
            await self._producer.room(size, ACK_S)
        except UnacknowledgedError:
            # Counted, and not recorded: there is no room for a record.
            self._count(call, CallOutcome.FAILED)
            call.spec.claim.fail(CallError("unrecorded", "Kafka took no records"))
            raise RefusalError(
                Refusal.OVERLOADED, "too much waits to be recorded; try again", retry_after_s=RETRY_AFTER_S
            ) from None

    async def _write(self, call: CallTask, answer: Answer, media: Sequence[Medium]) -> None:
        try:
            await self._capture.answered(call.spec, answer, media)
        except asyncio.CancelledError:
            self._capture.disown(call.spec, (call.ended or Ending.STOPPED).disowned_reason)
            raise
        except RecordTooLargeError as error:
            self._unanswered(call, CallOutcome.FAILED, CallError("too_large", str(error)))
            raise RefusalError(Refusal.TOO_LARGE, f"the call is too large for the log: {error}") from None

    def _unanswered(self, call: CallTask, outcome: CallOutcome, error: CallError) -> None:
        self._count(call, outcome)
        if outcome is CallOutcome.FAILED:
            call.spec.claim.fail(error)
        self._capture.unanswered(call.spec, outcome, error)

    def _count(self, call: CallTask, outcome: CallOutcome) -> None:
        self._metrics.calls.labels(call.spec.dialect, outcome.value).inc()
