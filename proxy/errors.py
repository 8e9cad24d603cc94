"""The errors of a call.

- `RefusalError`: for the harness; its dialect renders it in the provider's form. Raised anywhere in the pipeline.
- `EngineError`: the engine gave no usable answer; the pipeline records it, and `refusal_of` makes the harness's error of it.

Messages are for people and never contain a key or a prompt's text.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum

from topics.types.completion import CallError


class Refusal(Enum):
    """Why a harness gets no answer; the value is the HTTP status, which all providers share."""

    INVALID = (400, "invalid")
    CONTEXT_LENGTH = (400, "context_length")
    UNAUTHENTICATED = (401, "unauthenticated")
    SPENT = (403, "spent")
    """The session has used all the calls or tokens that its key allows."""
    NOT_FOUND = (404, "not_found")
    SLOW = (408, "slow")
    CLOSED = (409, "closed")
    TOO_LARGE = (413, "too_large")
    UPGRADE = (426, "upgrade")
    """A WebSocket was requested; only plain HTTP is served."""
    OVERLOADED = (429, "overloaded")
    BAD_ENGINE = (502, "bad_engine")
    UNAVAILABLE = (503, "unavailable")

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.value[0]

    @property
    def code(self) -> str:
        """The name in metrics and log lines."""
        return self.value[1]


MESSAGE_LIMIT = 1000
"""Characters of a message: the wrong value that it names may be a whole file."""


@dataclass(eq=False)
class RefusalError(Exception):
    """A call ends without an answer, and its harness gets this error."""

    refusal: Refusal
    message: str
    _: KW_ONLY
    field: str | None = None
    """Path of the request's field at fault."""
    retry_after_s: int | None = None
    """Sent as `Retry-After`."""
    context: tuple[int, int] | None = None
    """With CONTEXT_LENGTH, if the engine reports them: the prompt's tokens, and the most that fit."""
    is_recorded: bool = False
    """The log has this error already, as that of a call, or the proxy that owns the session has seen to its record."""

    def __post_init__(self) -> None:
        if len(self.message) > MESSAGE_LIMIT:
            self.message = self.message[:MESSAGE_LIMIT] + "…"

    def __str__(self) -> str:
        return self.message

    def copy(self) -> RefusalError:
        """A copy without traceback, to keep or to raise again: a raised exception refers to every frame that it passed, in a cycle."""
        return replace(self)


@dataclass(eq=False)
class EngineError(Exception):
    """The engine gave no usable answer. `code` is stable: `no_token_ids`, `length_mismatch`, `timeout`, …"""

    code: str
    message: str
    _: KW_ONLY
    status: int | None = None
    """The engine's HTTP status, if there was one."""
    retryable: bool = False
    """An immediate retry may succeed: overload, a server error, a lost connection."""
    retry_after_s: int | None = None
    context: tuple[int, int] | None = None
    """With `context_length`, if the engine reports them: the prompt's tokens, and the most that fit."""

    def __str__(self) -> str:
        return self.message

    def as_call_error(self) -> CallError:
        """The error as the log records it."""
        return CallError(self.code, self.message, self.status)


ENGINE_RETRY_AFTER_S = 2
"""Sent to harnesses if the engine sends none: Codex exits on a 429 without Retry-After."""
LONGEST_RETRY_AFTER_S = 30
"""Most harnesses wait as long as they are told, at their run's cost; an engine that asks for an hour may be back in a minute."""
OVERLOAD = frozenset({429, 503})
REQUESTS_FAULT = frozenset({"context_length", "refused", "too_large", "unanswerable"})
"""Codes of `CallError`: the request itself makes its call fail. All others are failures of the engine, of Kafka, or of a proxy."""


def refusal_of(fault: EngineError) -> RefusalError:
    """The harness's error for an engine's: a status that harnesses retry, unless their request is at fault."""
    if fault.code == "context_length":
        return RefusalError(Refusal.CONTEXT_LENGTH, fault.message, field="messages", context=fault.context)
    if fault.code == "refused":
        return RefusalError(Refusal.INVALID, fault.message)
    if fault.code in ("overloaded", "busy"):
        return RefusalError(
            Refusal.OVERLOADED,
            "the model is overloaded; try again",
            retry_after_s=min(fault.retry_after_s or ENGINE_RETRY_AFTER_S, LONGEST_RETRY_AFTER_S),
        )
    if fault.code == "unreachable":
        return RefusalError(
            Refusal.UNAVAILABLE, "the model can't be reached; try again", retry_after_s=ENGINE_RETRY_AFTER_S
        )
    return RefusalError(Refusal.BAD_ENGINE, f"the model gave no usable answer ({fault.code}); try again")
