"""When a delivery that failed is tried again: after 5 s, 10 s, 20 s … doubling to an hour, each ±20 %, for a day from its first failure."""

from __future__ import annotations

FIRST_S = 5.0
LONGEST_S = 3600.0
SPREAD = 0.2
"""So that what failed together doesn't come back together."""
DAY_S = 24 * 3600.0
DOUBLINGS = 20
"""More than lead from the first pause to the longest."""


def pause_s(tries: int, failed_for_s: float, asked_s: float, chance: float) -> float | None:
    """How long to wait after `tries` that failed, the first of them `failed_for_s` ago; None: it was the last one.

    `asked_s`: the endpoint's Retry-After, 0 without one; it is honoured as far as the day goes. `chance`: in [0, 1), where in the spread.
    """
    wanted = min(FIRST_S * 2 ** min(tries - 1, DOUBLINGS), LONGEST_S)
    spread = wanted * (1 - SPREAD + 2 * SPREAD * chance)
    left = DAY_S - failed_for_s
    return None if spread > left else min(max(spread, asked_s), left)
