"""What goes wrong with a call, by who must know.

- `RefusalError`: the harness must be told; its dialect puts it in the provider's shape. Raised anywhere in the pipeline.
- `EngineError`: the engine gave no usable answer; the pipeline records it and tells the harness by `refusal_of`.

Messages are for people and never hold a key or a prompt's text.
"""

from __future__ import annotations

from enum import Enum

from topics.types.completion import CallError


class Refusal(Enum):
    """Why a harness gets no answer; the value is the HTTP status, which all providers share."""

    INVALID = (400, "invalid")
    CONTEXT_LENGTH = (400, "context_length")
    UNAUTHENTICATED = (401, "unauthenticated")
    SPENT = (403, "spent")
    """The session has had all the calls or tokens that its key allows."""
    NOT_FOUND = (404, "not_found")
    SLOW = (408, "slow")
    CLOSED = (409, "closed")
    TOO_LARGE = (413, "too_large")
    UPGRADE = (426, "upgrade")
    """A WebSocket was asked for; plain HTTP is served."""
    OVERLOADED = (429, "overloaded")
    BAD_ENGINE = (502, "bad_engine")
    UNAVAILABLE = (503, "unavailable")

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.value[0]

    @property
    def code(self) -> str:
        """Name in metrics and log lines."""
        return self.value[1]


MESSAGE_LIMIT = 1000
"""Characters of a message: it names the value that is wrong, and that may be a whole file."""


class RefusalError(Exception):
    """A call ends without an answer."""

    def __init__(
        self,
        refusal: Refusal,
        message: str,
        *,
        field: str | None = None,
        retry_after_s: int | None = None,
        context: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.message = message if len(message) <= MESSAGE_LIMIT else message[:MESSAGE_LIMIT] + "…"
        self.field = field
        """The request's field that is to blame, as a path."""
        self.retry_after_s = retry_after_s
        """When to try again; sent as `Retry-After`."""
        self.context = context
        """Of CONTEXT_LENGTH, where the engine tells them: the prompt's tokens, and the most that fit."""

    def copy(self) -> RefusalError:
        """The same, to keep, or to raise where it was kept: an exception holds all that was at work where it came by, in a cycle."""
        return RefusalError(
            self.refusal, self.message, field=self.field, retry_after_s=self.retry_after_s, context=self.context
        )


class EngineError(Exception):
    """The engine gave no usable answer. `code` is stable: `no_token_ids`, `length_mismatch`, `timeout`, …"""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after_s: int | None = None,
        context: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        """The engine's HTTP status, where there was one."""
        self.retryable = retryable
        """Asking the same again at once may go well: overload, a server error, a connection."""
        self.retry_after_s = retry_after_s
        self.context = context
        """Of `context_length`, where the engine tells them: the prompt's tokens, and the most that fit."""

    def as_call_error(self) -> CallError:
        """As the log keeps it."""
        return CallError(self.code, self.message, self.status)


ENGINE_RETRY_AFTER_S = 2
"""Told to harnesses where the engine doesn't say: Codex dies of a 429 without Retry-After."""
LONGEST_RETRY_AFTER_S = 30
"""Most harnesses obey whatever they are told, at their run's cost; an engine that asks for an hour may be back in a minute."""
OVERLOAD = frozenset({429, 503})


def refusal_of(fault: EngineError) -> RefusalError:
    """What a harness is told of an engine's fault: a status that it tries again, except where its own request is at fault."""
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
