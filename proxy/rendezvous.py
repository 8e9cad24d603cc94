"""Rendezvous hashing: all processes that know the same names assign a key to the same name, without communicating.

Invariant: the order of two names for a key depends only on the key and these names. So a name that comes or goes moves only its own keys,
in every process and Python version, and a key falls back to the next name in its order.
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
