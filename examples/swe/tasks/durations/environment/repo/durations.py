"""Durations as people write them: `1h30m`, `90s`."""

import re

SECONDS = {"h": 3600, "m": 60, "s": 1}
PART = re.compile(r"(\d+)([hms])")


def parse(text):
    """Seconds. Raises ValueError for text that is no duration."""
    found = PART.findall(text)
    if not found:
        raise ValueError(f"no duration: {text!r}")
    return sum(int(count) * SECONDS[unit] for count, unit in found)


def show(seconds):
    """The shortest text with the largest units first."""
    parts = []
    for unit, size in SECONDS.items():
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
