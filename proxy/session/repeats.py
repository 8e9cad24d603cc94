"""A claim's requests by content, so that a repeated request gets the answer of the first and no second sample.

Two requests repeat one another if dialect, canonical request, sampling and lineage are equal; streaming or not doesn't matter. A request
that comes while an equal one is under way joins it. A later one whose client counts it as a retry gets the answer that was given: the
response was lost on its way. Without a retry counter it is a new request, since harnesses do ask again for another answer. An answer that
no harness received is never repeated, nor is one whose request was started anew since; so the newest answers are kept without a clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from proxy.chat import ChatRequest
from proxy.session.delivery import HAVE_ANSWER, State
from proxy.session.history import Transcript

ANSWERED = 16
"""Answers kept, without their tokens: more than a harness has requests under way."""
RETRY = "retry"
"""The lineage key that counts a client's tries."""
_encode = msgspec.json.Encoder().encode


class RepeatableCalls(Protocol):
    """`SharedCalls` of `proxy/session/reply.py`, as far as this index needs it."""

    on_release: Callable[[Any], None]

    @property
    def state(self) -> State: ...


C = TypeVar("C", bound=RepeatableCalls)


class RepeatIndex(Generic[C]):
    """One claim's requests, by the digest of their content."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, C] = {}
        self._answered: OrderedDict[bytes, C] = OrderedDict()

    def find(self, digest: bytes, *, is_retry: bool) -> C | None:
        """The calls that already answer a request of this content."""
        calls = self._under_way.get(digest)
        if calls is not None and (calls.state is State.RUNNING or (is_retry and calls.state in HAVE_ANSWER)):
            return calls
        return self._answered.get(digest) if is_retry else None

    def add(self, digest: bytes, calls: C) -> None:
        """Adds the calls of a request that was started anew."""
        self._answered.pop(digest, None)
        self._under_way[digest] = calls
        calls.on_release = lambda released: self._released(digest, released)

    def _released(self, digest: bytes, calls: C) -> None:
        if self._under_way.get(digest) is not calls:
            return
        del self._under_way[digest]
        if calls.state is State.KEPT:
            self._answered[digest] = calls
            if len(self._answered) > ANSWERED:
                self._answered.popitem(last=False)


def content_digest(
    dialect: str, request: ChatRequest, transcript: Transcript, lineage: Mapping[str, str] | None
) -> bytes:
    """Digest of a request's content; `transcript` stands for its messages and tools."""
    bare = msgspec.structs.replace(
        request, messages=[], tools=[], stream=False, stream_usage=False, continued=None, wire=None
    )
    caller = {name: value for name, value in (lineage or {}).items() if name != RETRY}
    content = _encode((dialect, bare, caller))
    return blake2b(transcript.messages.link + transcript.tools_digest + content, digest_size=16).digest()


def is_retry(lineage: Mapping[str, str] | None) -> bool:
    """Whether the client counts this request as a retry."""
    return (lineage or {}).get(RETRY, "0").strip().lstrip("0") != ""
