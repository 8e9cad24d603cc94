"""What a request waits for: its call, or its n choices, whoever else asks the same meanwhile.

Requests that repeat one another share a `SharedCalls`. A harness that hangs up leaves it; only when the last has left are the calls ended.
Once they are done there is an answer for each choice, or the one reason why there is none. Each request has its own `LocalReply`, since
its answer takes the form that this request asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from proxy.call import CallTask, Pipeline, refusal_of_ending
from proxy.chat import Answer, ChatRequest
from proxy.dialects.base import Dialect
from proxy.errors import RefusalError
from proxy.session.endings import Ending


class SharedCalls:
    """The calls that answer a request, and all that wait for them; at least one call, all of the same claim."""

    def __init__(self, pipeline: Pipeline, calls: Sequence[CallTask]) -> None:
        self._pipeline = pipeline
        self._calls = calls
        self._waiting = 0
        self._answers: list[Answer] | None = None
        """What was delivered, without its tokens: all that a repetition needs."""
        self.call_id = calls[0].asked.call_id
        """The first call's: the answer's id."""
        self.created = int(calls[0].asked.received_at)
        """Unix seconds."""
        self.on_left: Callable[[SharedCalls], None] = _nothing
        """Called once, when the last request has left."""
        self.done: asyncio.Future[Any] = (
            calls[0].answer
            if len(calls) == 1
            else asyncio.gather(*(call.answer for call in calls), return_exceptions=True)
        )

    @property
    def is_delivered(self) -> bool:
        """Whether a harness had the whole answer."""
        return self._answers is not None

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer to give, now."""
        return self.is_delivered or (self.done.done() and all(isinstance(one, Answer) for one in self._results()))

    def join(self) -> None:
        """One more request waits."""
        self._waiting += 1

    def leave(self, *, delivered: bool) -> None:
        """A request ended: with the whole answer, or because its harness hung up."""
        self._waiting -= 1
        if delivered and not self.is_delivered:
            self._answers = [_untokened(answer) for answer in self.answers()]
        if self._waiting:
            return
        if not self.is_delivered:
            self.end("hung_up")
            for call in self._calls:
                if isinstance(_result(call), Answer):
                    self._pipeline.undelivered(call)
        # What repetitions need is in `_answers`: a finished call's task would keep its result, tokens and all.
        self._calls = ()
        self.done = asyncio.get_running_loop().create_future()
        self.done.set_result(None)
        on_left, self.on_left = self.on_left, _nothing
        on_left(self)

    def end(self, reason: Ending) -> None:
        """Ends the calls that are under way, whoever waits."""
        for call in self._calls:
            if not call.answer.done():
                call.end(reason)

    def answers(self) -> list[Answer]:
        """Of each choice, once done. Raises RefusalError, for the first choice that has none; what went wrong in us as it is."""
        if self._answers is not None:
            return self._answers
        results = self._results()
        for result in results:
            if isinstance(result, Exception):
                raise result.copy() if isinstance(result, RefusalError) else result
        return [result for result in results if isinstance(result, Answer)]

    def _results(self) -> list[Answer | BaseException | None]:
        return [_result(call) for call in self._calls]


class LocalReply:
    """One request's wait for its answer."""

    def __init__(self, answering: SharedCalls, request: ChatRequest) -> None:
        """`request` as this harness made it."""
        self._answering = answering
        self._request = request

    @property
    def is_stream(self) -> bool:
        """Whether the answer is to leave as a stream."""
        return self._request.stream

    @property
    def done(self) -> asyncio.Future[Any]:
        """When there is an answer, or the reason why there is none."""
        return self._answering.done

    def join(self) -> None:
        """The wait begins."""
        self._answering.join()

    def leave(self, *, delivered: bool) -> None:
        """It ends: with the whole answer, or because the harness hung up."""
        self._answering.leave(delivered=delivered)

    def end(self, reason: Ending) -> None:
        """Ends the calls, whoever else waits for them."""
        self._answering.end(reason)

    def told(self, dialect: Dialect) -> bytes:
        """The answer as it leaves, once done. Raises RefusalError; what went wrong in us as it is."""
        form = dialect.stream if self._request.stream else dialect.body
        answering = self._answering
        return form(answering.call_id, answering.created, self._request, answering.answers())


def _nothing(_: SharedCalls) -> None:
    pass


def _result(call: CallTask) -> Answer | BaseException | None:
    """What came of a call; None while it is under way."""
    if not call.answer.done():
        return None
    if call.answer.cancelled():
        return refusal_of_ending(call.ended or "stopped")
    return call.answer.exception() or call.answer.result()


def _untokened(answer: Answer) -> Answer:
    return msgspec.structs.replace(answer, prompt_ids=b"", sampled_ids=b"", logprobs=b"")
