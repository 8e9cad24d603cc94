"""The interface of a dialect: a provider's wire format, to and from the canonical chat form.

Facts are class attributes; everything else is a pure function from wire to value or back. A dialect knows nothing of Kafka, engines, keys
or sessions. Policy, limits and capture are steps around all dialects (`proxy/routes.py`, `proxy/call.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from proxy.chat import Answer, ChatRequest
from proxy.errors import RefusalError
from topics.environment import registry


class Serves(Enum):
    """The purpose of a route."""

    CALL = "call"
    """A call of the model."""
    COUNT = "count"
    """The engine's tokenizer counts a request's prompt; nothing is sampled."""
    MODELS = "models"
    """A list of the models, or the one that the path names."""
    GREETING = "greeting"
    """A client tests whether a server is there: an empty 200."""
    UPGRADE = "upgrade"
    """A client requests a WebSocket: 426, which makes it use plain HTTP at once."""


@dataclass(frozen=True)
class Route:
    """One of a dialect's paths. Dialects may share paths; `Dialect.signs` then decides between them."""

    method: str
    path: str
    """A pattern of aiohttp; `Wire.path` has the values that it matched."""
    serves: Serves


def versioned(*routes: Route) -> tuple[Route, ...]:
    """The routes below `/v1`, and as they are, for clients that add no version to their base URL."""
    return tuple(replace(route, path=version + route.path) for version in ("/v1", "") for route in routes)


@dataclass(frozen=True)
class Wire:
    """A request as it arrived."""

    body: bytes
    path: Mapping[str, str] = field(default_factory=dict)
    """Values that the route's pattern matched, by name."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Look-up ignores case."""
    serves: Serves = Serves.CALL
    """The purpose of the request's route."""


class Dialect(Protocol):
    """One provider's wire format."""

    name: str
    """The dialect's name on the log and in metrics."""
    routes: tuple[Route, ...]
    signs: frozenset[str]
    """Headers, in lower case, that only this provider's clients send. They decide on shared paths, and on paths of no dialect."""
    id_prefix: str
    """Prefix of the ids of answers, and so of calls; 32 hex digits follow."""
    keep_alive: bytes
    """Bytes sent on an open stream while the answer is pending."""
    request_type: type[Any]
    """The msgspec struct of a call's body; its schema is published (`proxy/openapi.py`)."""

    def parse(self, wire: Wire) -> ChatRequest:
        """The canonical request of a CALL or COUNT route. Raises RefusalError, naming the field, for values that can't be carried."""

    def body(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """The whole body, one answer for each of `request.choices`; `created` is Unix seconds."""

    def stream(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """The answers as this provider streams them, from the first event to the terminal one, with the content of `body`."""

    def count(self, tokens: int) -> bytes:
        """The body of a COUNT route; `tokens` is the length of the prompt."""

    def models(self, served: Mapping[str, int | None], only: str | None) -> bytes:
        """The body that lists models, or describes `only` the one that is served. By name: tokens that a prompt and its answer may have
        together, None if the engine doesn't state it."""

    def error(self, refused: RefusalError) -> bytes:
        """An error's body."""

    def error_event(self, refused: RefusalError) -> bytes:
        """An error inside a stream whose headers were sent."""


def dialects() -> list[Dialect]:
    """An instance of each installed dialect, in the order in which they are tried. Raises InputError for one that can't be imported.

    Dialects without signs come first: a request without any sign is OpenAI's, whose clients send none.
    """
    made: list[Dialect] = [
        registry.load(registry.Kind.DIALECT, name)() for name in registry.names(registry.Kind.DIALECT)
    ]
    return sorted(made, key=lambda dialect: (bool(dialect.signs), dialect.name))
