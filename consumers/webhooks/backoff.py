"""When a delivery that failed is tried again: after 5 s, 10 s, 20 s … doubling to an hour, each ±20 %, for a day from its first failure."""

from __future__ import annotations

from topics.waiting.backoff import Backoff

PAUSES = Backoff(first_s=5.0, longest_s=3600.0, jitter=0.2)
"""The jitter keeps deliveries that failed together from coming back together."""
DAY_S = 24 * 3600.0


def pause_s(tries: int, failed_for_s: float, asked_s: float, chance: float) -> float | None:
    """How long to wait after `tries` that failed, the first of them `failed_for_s` ago; None: it was the last one.

    `asked_s`: the endpoint's Retry-After, 0 without one; it is honoured as far as the day goes. `chance`: in [0, 1), where in the spread.
    """
    pause = PAUSES.pause_s(tries, chance)
    left = DAY_S - failed_for_s
    return None if pause > left else min(max(pause, asked_s), left)
