"""Token ids and logprobs as bytes: int32 and float32, little-endian, never lists of numbers.

A value takes four bytes. Readers get numpy views without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

IDS = np.dtype("<i4")
LOGPROBS = np.dtype("<f4")
WIDTH = 4
"""Bytes of an id or a logprob."""

Ids = NDArray[np.int32]
Logprobs = NDArray[np.float32]


def pack_ids(ids: Sequence[int] | Ids) -> bytes:
    """Token ids to bytes. Raises OverflowError for an id outside int32."""
    return np.asarray(ids, dtype=IDS).tobytes()


def unpack_ids(data: bytes) -> Ids:
    """Bytes to token ids, int32 [n], read-only. Raises ValueError unless the length is a multiple of 4."""
    return np.frombuffer(data, dtype=IDS)


def pack_logprobs(logprobs: Sequence[float] | Logprobs) -> bytes:
    """Logprobs to bytes, rounded to float32."""
    return np.asarray(logprobs, dtype=LOGPROBS).tobytes()


def unpack_logprobs(data: bytes) -> Logprobs:
    """Bytes to logprobs, float32 [n], read-only. Raises ValueError unless the length is a multiple of 4."""
    return np.frombuffer(data, dtype=LOGPROBS)


def count(data: bytes) -> int:
    """The number of values in packed bytes."""
    return len(data) // WIDTH


def common_prefix(a: Ids, b: Ids) -> int:
    """Length of the longest common prefix of two id arrays, in tokens."""
    shared = min(len(a), len(b))
    differs = a[:shared] != b[:shared]
    first = int(differs.argmax()) if shared else 0
    return first if shared and differs[first] else shared


def common_suffix(a: Ids, b: Ids) -> int:
    """Length of the longest common suffix of two id arrays, in tokens."""
    return common_prefix(a[::-1], b[::-1])
