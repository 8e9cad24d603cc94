"""What one request waits for: its call, or its n choices, whoever else asks the same meanwhile.

Requests that repeat one another share a reply. A harness that hangs up leaves; only when the last has left are the calls ended. Once
they are done the reply is an answer for each choice, or the one reason why there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from proxy.call import Call, Pipeline, refusal_of_ending
from proxy.chat import Answer, ChatRequest
from proxy.dialects.base import Dialect
from proxy.errors import Refused
from proxy.session import Ending


class Reply:
    """The calls that answer a request; at least one, all of the same claim."""

    def __init__(self, pipeline: Pipeline, calls: Sequence[Call]) -> None:
        self._pipeline = pipeline
        self._calls = calls
        self._waiting = 0
        self._is_delivered = False
        self.done: asyncio.Future[Any] = (
            calls[0].answer
            if len(calls) == 1
            else asyncio.gather(*(call.answer for call in calls), return_exceptions=True)
        )

    @property
    def is_stream(self) -> bool:
        """Whether the answer is to leave as a stream."""
        return self.request.stream

    @property
    def call_id(self) -> str:
        """The first call's: the answer's id."""
        return self._calls[0].asked.call_id

    @property
    def request(self) -> ChatRequest:
        """As the engine is asked."""
        return self._calls[0].asked.request

    @property
    def created(self) -> int:
        """Unix seconds."""
        return int(self._calls[0].asked.received_at)

    def join(self) -> None:
        """One more request waits."""
        self._waiting += 1

    def leave(self, *, delivered: bool) -> None:
        """A request ended: with the whole answer, or because its harness hung up."""
        self._waiting -= 1
        self._is_delivered = self._is_delivered or delivered
        if self._waiting or self._is_delivered:
            return
        self.end("hung_up")
        for call in self._calls:
            if call.answer.done() and not call.answer.cancelled() and isinstance(call.answer.result(), Answer):
                self._pipeline.undelivered(call)

    def end(self, reason: Ending) -> None:
        """Ends the calls that are under way, whoever waits."""
        for call in self._calls:
            if not call.answer.done():
                call.end(reason)

    def told(self, dialect: Dialect) -> bytes:
        """The answer as it leaves, once done. Raises as `result` does."""
        answers = self.result()
        form = dialect.stream if self.request.stream else dialect.body
        return form(self.call_id, self.created, self.request, answers)

    def result(self) -> list[Answer]:
        """The answers, once done. Raises Refused, for the first choice that has none; what went wrong in us as it is."""
        told = [
            refusal_of_ending(call.ended or "stopped") if call.answer.cancelled() else call.answer.result()
            for call in self._calls
        ]
        refused = next((one for one in told if isinstance(one, Refused)), None)
        if refused is not None:
            raise refused
        return [one for one in told if isinstance(one, Answer)]
