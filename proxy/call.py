"""One call's way: wait for the fleet and for room, ask the engine, capture; what comes out may be answered.

A pause of the fleet is no part of it: what a pause ends at the engine is asked anew after it, and the harness only waits.

It runs as a task of its own, so that the harness's connection and the call's life are two things: a harness that hangs up, or a key that
is closed, ends the call with a reason, and what must be said of it on the log is said.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from proxy.capture import ACK_S, RETRY_AFTER_S, CallSpec, Capture
from proxy.chat import Answer
from proxy.engines.pool import Engines
from proxy.errors import EngineError, Refusal, RefusalError, refusal_of
from proxy.fleet import HELD_S, Fleet, FleetPausedError
from proxy.metrics import Metrics
from proxy.policy import VersionAttribution
from proxy.session.endings import Ending, closed
from topics.log.producer import LogProducer, RecordTooLargeError, UnacknowledgedError
from topics.types.completion import CallError, CallOutcome

ENDINGS: dict[Ending, CallError] = {
    "hung_up": CallError("hung_up", "the harness closed its connection"),
    "closed": CallError("closed", "the key was closed"),
    "stopped": CallError("stopped", "the proxy was stopped"),
}
"""What the log says of them."""
DISOWNED: dict[Ending, str] = {"hung_up": "hung_up", "closed": "closed", "stopped": "unacknowledged"}
"""The same for a call whose record was sent."""

log = structlog.get_logger(__name__)


class CallTask:
    """A call in flight. `answer` is a task that yields what may be answered, or what the harness is told instead."""

    def __init__(self, pipeline: Pipeline, asked: CallSpec, size: int) -> None:
        self.asked = asked
        self.ended: Ending | None = None
        self._in_flight = asked.claim.in_flight
        self._in_flight.add(self)
        self.answer = asyncio.get_running_loop().create_task(pipeline.run(self, size), name=asked.call_id)
        # Not in the coroutine: a task that is cancelled before its first step never enters it.
        self.answer.add_done_callback(lambda _: self._in_flight.discard(self))

    def end(self, reason: Ending) -> None:
        """Ends it, wherever it stands; the first reason holds."""
        if self.ended is None:
            self.ended = reason
            self.answer.cancel()


class Pipeline:
    """What every call passes through."""

    def __init__(
        self, engines: Engines, producer: LogProducer, capture: Capture, fleet: Fleet, metrics: Metrics
    ) -> None:
        self.engines = engines
        self._producer = producer
        self._capture = capture
        self._fleet = fleet
        self._metrics = metrics
        self._policies = VersionAttribution(metrics)

    async def run(self, call: CallTask, size: int) -> Answer | RefusalError:
        """An answer that is on the log, or why there is none; `size` is the request's, in bytes."""
        self._metrics.in_flight.inc()
        try:
            answer = await self._asked(call, size)
            await self._captured(call, answer)
            self._count(call, CallOutcome.ANSWERED)
            return answer
        except RefusalError as refused:
            return refused.copy()
        except asyncio.CancelledError:
            if call.ended is None:
                raise
            return refusal_of_ending(call.ended)
        except Exception as error:
            self._unanswered(call, CallOutcome.FAILED, CallError("proxy_fault", type(error).__name__))
            raise  # told and logged where requests are answered
        finally:
            self._metrics.in_flight.dec()

    def undelivered(self, call: CallTask) -> None:
        """The call is on the log, and its harness went away before it had the answer."""
        self._capture.disown(call.asked, DISOWNED["hung_up"])

    async def _running(self, call: CallTask, until: float) -> bool:
        """Wait for the fleet to run: whether that took a wait."""
        try:
            return await self._fleet.runs(until)
        except RefusalError as refused:
            self._unanswered(call, CallOutcome.FAILED, CallError("paused", refused.message))
            raise

    async def _roomy(self, call: CallTask, size: int) -> None:
        if self._producer.has_room(size):
            return
        try:
            await self._producer.room(size, ACK_S)
        except UnacknowledgedError:
            # Counted, and not recorded: there is no room for that.
            self._count(call, CallOutcome.FAILED)
            raise RefusalError(
                Refusal.OVERLOADED, "too much waits to be recorded; try again", retry_after_s=RETRY_AFTER_S
            ) from None

    async def _asked(self, call: CallTask, size: int) -> Answer:
        """The engine's answer, with what can be told of the policy versions that sampled it."""
        asked = call.asked
        try:
            return await self._sampled(call, size)
        except EngineError as fault:
            log.warning(
                "call failed", action="call_failed", call_id=asked.call_id, code=fault.code, status=fault.status
            )
            self._unanswered(call, CallOutcome.FAILED, fault.as_call_error())
            raise refusal_of(fault) from None
        except asyncio.CancelledError:
            self._unanswered(call, CallOutcome.ABANDONED, ENDINGS[call.ended or "stopped"])
            raise

    async def _sampled(self, call: CallTask, size: int) -> Answer:
        """The same, of the first try that no pause ended."""
        asked = call.asked
        engine = self.engines.for_model(asked.request.model)
        held_until = asyncio.get_running_loop().time() + HELD_S
        was_held = False
        while True:
            was_held |= await self._running(call, held_until)
            await self._roomy(call, size)
            under_way = self._fleet.call(engine.name)
            began = time.perf_counter()
            try:
                answer = await engine.complete(
                    asked.request, asked.claim.key.session_id, under_way=under_way, patiently=was_held
                )
            except FleetPausedError:
                was_held = True
                continue
            self._metrics.engine_s.observe(time.perf_counter() - began)
            return self._policies.told(engine.name, answer, under_way.version)

    async def _captured(self, call: CallTask, answer: Answer) -> None:
        try:
            await self._capture.answered(call.asked, answer)
        except asyncio.CancelledError:
            self._capture.disown(call.asked, DISOWNED[call.ended or "stopped"])
            raise
        except RecordTooLargeError as error:
            self._unanswered(call, CallOutcome.FAILED, CallError("too_large", str(error)))
            raise RefusalError(Refusal.TOO_LARGE, f"the call is too large for the log: {error}") from None

    def _unanswered(self, call: CallTask, outcome: CallOutcome, error: CallError) -> None:
        self._count(call, outcome)
        self._capture.unanswered(call.asked, outcome, error)

    def _count(self, call: CallTask, outcome: CallOutcome) -> None:
        self._metrics.calls.labels(call.asked.dialect, outcome.value).inc()


def refusal_of_ending(ending: Ending) -> RefusalError:
    """What the harness is told of a call that was ended, if it is still there."""
    if ending == "closed":
        return closed()
    return RefusalError(Refusal.UNAVAILABLE, "the proxy is stopping; try again", retry_after_s=RETRY_AFTER_S)
