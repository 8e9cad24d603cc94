"""What a dialect is: a provider's wire format in and out of the canonical chat form.

Facts are class attributes, the rest pure functions, wire in and value out. A dialect knows nothing of Kafka, engines or sessions; policy,
limits and capture are steps around all dialects (`proxy/call.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from proxy.chat import Answer, ChatRequest
from proxy.errors import Refused


class Dialect(Protocol):
    """One provider's wire format."""

    name: str
    """On the log and in metrics."""
    calls: tuple[str, ...]
    """Paths that take a model call, by POST; aiohttp's patterns."""
    models: tuple[str, ...]
    """Paths that list the models, by GET."""
    id_prefix: str
    """An answer's id, and so the call's, is this and 32 hex digits."""
    keep_alive: bytes
    """What an open stream says while there is nothing to say."""

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        """The API key of a request, from where this provider puts it."""
        ...

    def parse(self, body: bytes) -> ChatRequest:
        """The canonical request. Raises Refused, naming the field, for what can't be carried."""
        ...

    def body(self, call_id: str, created: int, request: ChatRequest, answer: Answer) -> bytes:
        """The answer's whole body; `created` is Unix seconds."""
        ...

    def stream(self, call_id: str, created: int, request: ChatRequest, answer: Answer) -> bytes:
        """The answer as this provider streams it, every event from first to terminal: it says what `body` says."""
        ...

    def error(self, refused: Refused) -> bytes:
        """An error's body."""
        ...

    def error_event(self, refused: Refused) -> bytes:
        """An error inside a stream whose headers are out."""
        ...

    def model_list(self, served: list[str]) -> bytes:
        """The body that lists models."""
        ...
