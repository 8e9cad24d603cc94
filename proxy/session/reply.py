"""The calls that answer a request (one for each of its n choices), shared by all requests that repeat it meanwhile.

A harness that hangs up leaves them; only when the last has left are the calls ended. When they are done there is an answer for each
choice, or the one error of them all. `proxy/session/delivery.py` holds the states; each request renders the answer in its own form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from proxy.call import CallTask, Pipeline
from proxy.chat import Answer, ChatRequest
from proxy.dialects.base import Dialect
from proxy.errors import RefusalError
from proxy.session.delivery import Effect, Event, State, advance
from proxy.session.endings import Ending


class SharedCalls:
    """At least one call, all of the same claim, and the requests that wait for them."""

    def __init__(self, pipeline: Pipeline, calls: Sequence[CallTask]) -> None:
        self._pipeline = pipeline
        self._calls = calls
        self._waiting = 0
        self._state = State.RUNNING
        self._answers: list[Answer] = []
        """The delivered answers without their tokens: all that a repetition needs."""
        self._call_id, self._created = calls[0].spec.call_id, int(calls[0].spec.received_at)
        self.on_release: Callable[[SharedCalls], None] = nothing
        """Called once, when the last request has left."""
        self.on_delivered: Callable[[SharedCalls], None] = nothing
        """Called once, when the first request has left with the whole answer."""
        self.done: asyncio.Future[Any] = (
            calls[0].answer
            if len(calls) == 1
            else asyncio.gather(*(call.answer for call in calls), return_exceptions=True)
        )

    @property
    def state(self) -> State:
        """The state now: that calls have ended is noticed when somebody looks."""
        if self._state is State.RUNNING and self.done.done():
            is_answered = all(isinstance(result, Answer) for result in self._results())
            self._state, _ = advance(self._state, Event.ANSWERED if is_answered else Event.FAILED)
        return self._state

    def join(self) -> None:
        """One more request waits."""
        self._waiting += 1
        self._advance(Event.JOINED)

    def leave(self, *, delivered: bool) -> None:
        """A request ended: with the whole answer, or without it."""
        self._waiting -= 1
        if self._waiting:
            self._advance(Event.DELIVERED if delivered else Event.LEFT)
        else:
            self._advance(Event.LAST_DELIVERED if delivered else Event.LAST_LEFT)

    def end(self, reason: Ending) -> None:
        """Ends the calls that are under way, whoever waits for them."""
        for call in self._calls:
            if not call.answer.done():
                call.end(reason)

    def render(self, dialect: Dialect, request: ChatRequest) -> bytes:
        """The answer in the form that `request` asks for, once done. Raises what `answers` raises."""
        form = dialect.stream if request.stream else dialect.body
        return form(self._call_id, self._created, request, self.answers())

    def answers(self) -> list[Answer]:
        """The answer of each choice, once done. Raises RefusalError, or the exception of a fault of ours, of the first without one."""
        if self._answers:
            return self._answers
        results = self._results()
        for result in results:
            if isinstance(result, Exception):
                raise result.copy() if isinstance(result, RefusalError) else result
        return [result for result in results if isinstance(result, Answer)]

    def _advance(self, event: Event) -> None:
        self._state, effects = advance(self.state, event)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Effect.KEEP_ANSWERS:
                self._keep_answers()
            case Effect.END_CALLS:
                self.end(Ending.HUNG_UP)
            case Effect.DISOWN_ANSWERS:
                self._disown_answers()
            case Effect.RELEASE:
                self._release()

    def _keep_answers(self) -> None:
        self._answers = [
            msgspec.structs.replace(answer, prompt_ids=b"", sampled_ids=b"", logprobs=b"") for answer in self.answers()
        ]
        on_delivered, self.on_delivered = self.on_delivered, nothing
        on_delivered(self)

    def _disown_answers(self) -> None:
        for call in self._calls:
            if isinstance(_result(call), Answer):
                self._pipeline.undelivered(call)

    def _release(self) -> None:
        # `_answers` serves repetitions: the task of a finished call would keep its result, tokens and all.
        self._calls = ()
        self.done = asyncio.get_running_loop().create_future()
        self.done.set_result(None)
        on_release, self.on_release = self.on_release, nothing
        on_release(self)

    def _results(self) -> list[Answer | BaseException | None]:
        return [_result(call) for call in self._calls]


def nothing(_: SharedCalls) -> None:
    """The callback of shared calls whose event interests nobody."""


def _result(call: CallTask) -> Answer | BaseException | None:
    """The result of a call; None while it is under way."""
    if not call.answer.done():
        return None
    if call.answer.cancelled():
        return (call.ended or Ending.STOPPED).refusal
    return call.answer.exception() or call.answer.result()
