"""Why a call is ended from outside, and what its harness is answered then."""

from __future__ import annotations

from typing import Literal, Protocol

from proxy.errors import Refusal, RefusalError

Ending = Literal["hung_up", "closed", "stopped"]
"""The harness closed its connection, the session's key was closed, or the proxy stops."""


class EndableCall(Protocol):
    """A call that can be ended."""

    def end(self, reason: Ending) -> None:
        """End the call soon; it is not answered any more."""
        ...


def closed() -> RefusalError:
    """The refusal of every call whose key is closed."""
    return RefusalError(Refusal.CLOSED, "this session is over; its key is closed")
