"""The limits of a session's key: calls, sampled tokens, and calls at a time.

Answers on the log count, whichever proxy wrote them and whether or not the harness received them. If a claim has several keys, the calls
of all of them count for each. How many tokens a call will sample is
unknown when it starts, so the last call may exceed the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.errors import Refusal, RefusalError
from topics.environment.keys import Limits

RETRY_AFTER_S = 1


@dataclass(slots=True)
class ClaimUsage:
    """The calls and tokens that one claim has used."""

    calls: int = 0
    tokens: int = 0

    def add(self, sampled: int) -> None:
        """Adds an answer with this number of sampled tokens."""
        self.calls += 1
        self.tokens += sampled


def admit(limits: Limits, usage: ClaimUsage, under_way: int, more: int) -> None:
    """Raises RefusalError if `more` calls may not start: SPENT if they never may, OVERLOADED while others are under way."""
    if limits.tokens is not None and usage.tokens >= limits.tokens:
        raise RefusalError(Refusal.SPENT, f"this session has sampled its {limits.tokens} tokens")
    if limits.calls is not None and usage.calls + more > limits.calls:
        raise RefusalError(Refusal.SPENT, f"this session has had {usage.calls} of its {limits.calls} calls")
    # Calls under way may fail, and then don't count.
    remaining = None if limits.calls is None else limits.calls - usage.calls
    most = limits.concurrent_calls if remaining is None else min(limits.concurrent_calls, remaining)
    if under_way and under_way + more > most:
        raise RefusalError(
            Refusal.OVERLOADED,
            f"this session has {under_way} calls under way and may have {most}; try again",
            retry_after_s=RETRY_AFTER_S,
        )
