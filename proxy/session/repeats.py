"""A claim's requests by what they ask, so that one which repeats another gets its answer and not a second sample.

Two repeat one another where dialect, canonical request, sampling and lineage are the same; whether they want a stream doesn't matter. One
that comes while the first is under way joins it. One that comes later and says by its retry counter that its client has asked before gets
the answer that was given: the response was lost on its way. Without a counter it is another request, since harnesses do ask again for
another answer. An answer that nobody got is never repeated, nor one that was asked for anew since: so no clock is needed, and the newest
answers are kept without one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from proxy.chat import ChatRequest
from proxy.session.history import Transcript

ANSWERED = 16
"""Answers kept: more than a harness has requests under way, without their tokens."""
RETRY = "retry"
"""The lineage key that counts a client's tries."""
_encode = msgspec.json.Encoder().encode


class SharedCalls(Protocol):
    """The calls that answer a request, as `proxy/session/reply.py` implements them."""

    done: asyncio.Future[Any]
    on_left: Callable[[Any], None]

    @property
    def is_answered(self) -> bool: ...

    @property
    def is_delivered(self) -> bool: ...


A = TypeVar("A", bound=SharedCalls)


class RepeatIndex(Generic[A]):
    """One claim's requests, by name."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, A] = {}
        self._answered: OrderedDict[bytes, A] = OrderedDict()

    def shared(self, name: bytes, *, is_retry: bool) -> A | None:
        """What answers a request of this name already."""
        under_way = self._under_way.get(name)
        if under_way is not None and (not under_way.done.done() or (is_retry and under_way.is_answered)):
            return under_way
        return self._answered.get(name) if is_retry else None

    def start(self, name: bytes, answering: A) -> None:
        """A request of this name is asked anew."""
        self._answered.pop(name, None)
        self._under_way[name] = answering
        answering.on_left = lambda left: self._left(name, left)

    def _left(self, name: bytes, answering: A) -> None:
        if self._under_way.get(name) is not answering:
            return
        del self._under_way[name]
        if answering.is_delivered:
            self._answered[name] = answering
            if len(self._answered) > ANSWERED:
                self._answered.popitem(last=False)


def name_of(dialect: str, request: ChatRequest, told: Transcript, lineage: Mapping[str, str] | None) -> bytes:
    """What a request asks, as a digest; `told` stands for its messages and tools."""
    bare = msgspec.structs.replace(
        request, messages=[], tools=[], stream=False, stream_usage=False, continued=None, wire=None
    )
    whose = {name: value for name, value in (lineage or {}).items() if name != RETRY}
    asked = _encode((dialect, bare, whose))
    return blake2b(told.messages.link + told.tools_digest + asked, digest_size=16).digest()


def is_retry(lineage: Mapping[str, str] | None) -> bool:
    """Whether the client counts this as another try of a request."""
    return (lineage or {}).get(RETRY, "0").strip().lstrip("0") != ""
