"""A group's rewards for people: a bar for each sample, and in words."""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
UNKNOWN = "·"


def bars(rewards: Sequence[float | None]) -> str:
    """A character a sample: how high its reward stands between 0 and 1, or as far as these rewards reach; a dot for none."""
    known = [reward for reward in rewards if reward is not None]
    low, high = min([0.0, *known]) / 2, max([1.0, *known]) / 2  # halves: their difference is finite
    shares = (None if reward is None else (reward / 2 - low) / (high - low) for reward in rewards)
    return "".join(UNKNOWN if share is None else BARS[round(share * (len(BARS) - 1))] for share in shares)
