"""Splits of a dataset by task, with each repository divided in the same proportion.

Pure. Invariant: a task is in one split, the split depends on the tasks, their repositories and the seed alone, and neither a repository's
nor the whole number of tasks in a split is off its share by more than the number of splits. An export passes all attempted tasks, so its
rules of acceptance move no task into another split.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from fractions import Fraction

from topics.types.errors import InputError

FIELD = "--split"
PART = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,63})=(\d{0,9}(?:\.\d{1,9})?)")
"""A name that is also a file name, and a decimal number."""
Shares = Mapping[str, Fraction]
"""By the split's name; their sum is 1."""
WHOLE: Shares = {"train": Fraction(1)}


def parse(text: str) -> Shares:
    """The shares of `train=0.9,val=0.1`. Raises InputError."""
    shares: dict[str, Fraction] = {}
    for part in text.split(","):
        match = PART.fullmatch(part.strip())
        if match is None or not any(digit in "123456789" for digit in match[2]):
            raise InputError(FIELD, text, "expected names with shares above 0, like train=0.9,val=0.1")
        if match[1] in shares:
            raise InputError(FIELD, text, f"names {match[1]} twice")
        shares[match[1]] = Fraction(match[2])
    if (total := sum(shares.values())) != 1:
        raise InputError(FIELD, text, f"the shares add up to {float(total):g}, not to 1")
    return shares


def assign(repositories: Mapping[str, str | None], shares: Shares, seed: int) -> dict[str, str]:
    """The split of each task; `repositories` has each task's repository.

    The tasks of a repository are shuffled. Each task in turn goes to the split that lacks most of its share of the tasks so far.
    """
    shuffled = sorted(repositories, key=lambda task: (repositories[task] or "", _drawn(task, seed), task))
    lacking = dict.fromkeys(shares, Fraction(0))
    found = {}
    for task in shuffled:
        for split, share in shares.items():
            lacking[split] += share
        chosen = max(lacking, key=lambda split: lacking[split])
        lacking[chosen] -= 1
        found[task] = chosen
    return found


def _drawn(task: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed} {task}".encode(), digest_size=16).digest()
