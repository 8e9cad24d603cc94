"""What a dialect is: a provider's wire format in and out of the canonical chat form.

Facts are class attributes, the rest pure functions, wire in and value out. A dialect knows nothing of Kafka, engines, keys or sessions;
policy, limits and capture are steps around all dialects (`proxy/routes.py`, `proxy/call.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from proxy.chat import Answer, ChatRequest
from proxy.errors import RefusalError


class Serves(Enum):
    """What a route is for."""

    CALL = "call"
    """The model is asked."""
    COUNT = "count"
    """The engine's tokenizer counts a request's prompt; nothing is sampled."""
    MODELS = "models"
    """The models are listed; where the path names one, it alone is told."""
    GREETING = "greeting"
    """A client looks whether somebody is there: an empty 200."""
    UPGRADE = "upgrade"
    """A client asks for a WebSocket: 426, which sends it to plain HTTP at once."""


@dataclass(frozen=True)
class Route:
    """One of a dialect's paths. Paths may be shared among dialects: `Dialect.signs` tells them apart."""

    method: str
    path: str
    """aiohttp's pattern; what it matches is in `Wire.path`."""
    serves: Serves


@dataclass(frozen=True)
class Wire:
    """A request as it came."""

    body: bytes
    path: Mapping[str, str] = field(default_factory=dict)
    """What the route's pattern matched, by name."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names without regard to case."""
    serves: Serves = Serves.CALL
    """Of the route that it came on."""


class Dialect(Protocol):
    """One provider's wire format."""

    name: str
    """On the log and in metrics."""
    routes: tuple[Route, ...]
    signs: frozenset[str]
    """Headers, in lower case, that only this provider's clients send: they decide on paths that several dialects have, or none."""
    id_prefix: str
    """An answer's id, and so the call's, is this and 32 hex digits."""
    keep_alive: bytes
    """What an open stream says while there is nothing to say."""
    request_type: type[Any]
    """The msgspec struct that a call's body is decoded into; its schema is published (`proxy/openapi.py`)."""

    def parse(self, wire: Wire) -> ChatRequest:
        """The canonical request of a CALL or COUNT route. Raises RefusalError, naming the field, for what can't be carried."""
        ...

    def body(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """The whole body, one answer for each of `request.choices`; `created` is Unix seconds."""
        ...

    def stream(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """The answers as this provider streams them, every event from first to terminal: it says what `body` says."""
        ...

    def count(self, tokens: int) -> bytes:
        """The body of a COUNT route: the tokens of the prompt."""
        ...

    def models(self, served: Sequence[str], only: str | None) -> bytes:
        """The body that lists models, or tells of `only` one of them."""
        ...

    def error(self, refused: RefusalError) -> bytes:
        """An error's body."""
        ...

    def error_event(self, refused: RefusalError) -> bytes:
        """An error inside a stream whose headers are out."""
        ...
