"""Why a call is ended before its engine has answered, and what the log and the harness are told of it."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from proxy.errors import Refusal, RefusalError
from topics.types.completion import CallError

RETRY_AFTER_S = 5


class Ending(Enum):
    """A reason; the value is the `CallError` of the call's record: code and message."""

    HUNG_UP = ("hung_up", "the harness closed its connection")
    KEY_CLOSED = ("closed", "the key was closed")
    STOPPED = ("stopped", "the proxy was stopped")

    @property
    def call_error(self) -> CallError:
        """The error on the record of a call that was ended before its record was sent."""
        return CallError(*self.value)

    @property
    def disowned_reason(self) -> str:
        """The reason on the `Disowned` of a call that was ended after its record was sent."""
        return "unacknowledged" if self is Ending.STOPPED else self.value[0]

    @property
    def refusal(self) -> RefusalError:
        """The harness's error, if it is still connected."""
        if self is Ending.KEY_CLOSED:
            return RefusalError(Refusal.CLOSED, "this session is over; its key is closed")
        return RefusalError(Refusal.UNAVAILABLE, "the proxy is stopping; try again", retry_after_s=RETRY_AFTER_S)


class EndableCall(Protocol):
    """A call in flight that can be ended."""

    def end(self, reason: Ending) -> None:
        """Ends the call soon; it isn't answered any more."""
