"""Rendezvous hashing: which of several names a key belongs to, agreed on without a word by all who know the same names.

Invariant: the order of two names for a key depends on that key and those two names alone. So a name that comes or goes moves only the keys
that it wins, in all processes alike, of any version of Python, and what a key falls back to is the next in its order.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

WEIGHT_BYTES = 8


def ranked(key: str, names: Iterable[str]) -> list[str]:
    """The names, each once, best first for this key."""
    seed = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=WEIGHT_BYTES).digest()

    def weight(name: str) -> tuple[bytes, str]:
        return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=WEIGHT_BYTES, key=seed).digest(), name

    return sorted(set(names), key=weight, reverse=True)
