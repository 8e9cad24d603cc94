"""Why a call is ended from outside, and what its harness is answered then."""

from __future__ import annotations

from typing import Literal, Protocol

from proxy.errors import Refusal, Refused

Ending = Literal["hung_up", "closed", "stopped"]
"""The harness closed its connection, the session's key was closed, or the proxy stops."""


class InFlight(Protocol):
    """A call that can be ended."""

    def end(self, reason: Ending) -> None:
        """End the call soon; it is not answered any more."""
        ...


def closed() -> Refused:
    """The refusal of every call whose key is closed."""
    return Refused(Refusal.CLOSED, "this session is over; its key is closed")
