"""What a session may use: the calls and tokens that its key allows it, and how many calls at a time.

Counted are the answers that are on the log, of all who owned the session, whether their harness still got them or not. Tokens are those
sampled; how many a call will sample nobody knows before, so the last one may go beyond.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.errors import Refusal, RefusalError
from topics.environment.keys import Limits

RETRY_AFTER_S = 1


@dataclass(slots=True)
class ClaimUsage:
    """By one claim."""

    calls: int = 0
    tokens: int = 0

    def add(self, sampled: int) -> None:
        """An answer of so many sampled tokens is on the log."""
        self.calls += 1
        self.tokens += sampled


def admit(limits: Limits, spent: ClaimUsage, under_way: int, more: int) -> None:
    """Raises RefusalError unless `more` calls may begin beside those under way: SPENT for good, OVERLOADED while others run."""
    if limits.tokens is not None and spent.tokens >= limits.tokens:
        raise RefusalError(Refusal.SPENT, f"this session has sampled its {limits.tokens} tokens")
    if limits.calls is not None and spent.calls + more > limits.calls:
        raise RefusalError(Refusal.SPENT, f"this session has had {spent.calls} of its {limits.calls} calls")
    # Calls under way may fail, and leave what they would have spent.
    left = None if limits.calls is None else limits.calls - spent.calls
    most = limits.concurrent_calls if left is None else min(limits.concurrent_calls, left)
    if under_way and under_way + more > most:
        raise RefusalError(
            Refusal.OVERLOADED,
            f"this session has {under_way} calls under way and may have {most}; try again",
            retry_after_s=RETRY_AFTER_S,
        )
