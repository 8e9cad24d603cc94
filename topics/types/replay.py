"""What a trainer replays of a call beside its tokens: the experts that the model's routers chose, and the tokens that truncation left.

Their form in the blob store, version 1: the line `polar replay 1`; a line of JSON, with the kind, the dtype and shape of each array, and
the other fields; then the bytes of the arrays, in order, without gaps, little-endian, in C order. A blob isn't compressed: zstd saves
12 % of the experts of a model with 128 experts, and 31 % of masks, which are small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from topics.types.completion import ReplayField
from topics.types.tokens import IDS, Ids

_FORM = b"polar replay 1\n"
_EXPERTS = ("uint8", "uint16", "int32")
"""Dtypes of experts, as vLLM chooses them by the number of experts."""


class ReplayError(ValueError):
    """Bytes that aren't what they should be: a blob, or what an engine sent."""


@dataclass(frozen=True, eq=False)
class RoutedExperts:
    """The experts of a range of one call's tokens, of its prompt and its sampled tokens together."""

    experts: NDArray[Any]
    """uint8, uint16 or int32 [rows, layers, top_k]. A layer without experts has zeros. The last sampled token has no row, because the
    engine never read it."""
    start: int = 0
    """The token of the first row."""
    base: str | None = None
    """Id of the call whose prompt and sampled tokens begin this call's prompt, and which has the rows before `start`. None: `start` is
    0."""


@dataclass(frozen=True, eq=False)
class SamplingMask:
    """For each of n tokens, the tokens that could be sampled in its place, itself included, ascending.

    Those of token i are `token_ids[offsets[i]:offsets[i + 1]]`; none: the token has no mask.
    """

    token_ids: Ids
    """int32 [m]"""
    offsets: Ids
    """int32 [n + 1], ascending from 0 to m"""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def at(self, token: int) -> Ids:
        """The mask of one token, int32."""
        return self.token_ids[self.offsets[token] : self.offsets[token + 1]]


class _Array(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: list[int]


class _Header(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: ReplayField
    arrays: list[_Array]
    start: int = 0
    base: str | None = None


_header = msgspec.json.Decoder(_Header)


def encode(value: RoutedExperts | SamplingMask) -> bytes:
    """The blob's bytes."""
    if isinstance(value, RoutedExperts):
        return _encode("routed_experts", [value.experts], start=value.start, base=value.base)
    return _encode("sampling_mask", [value.offsets, value.token_ids])


def decode_experts(data: bytes) -> RoutedExperts:
    """The experts in a blob, which is not copied. Raises ReplayError."""
    header, arrays = _decode("routed_experts", data)
    if len(arrays) != 1 or arrays[0].ndim != 3 or arrays[0].dtype.name not in _EXPERTS:
        raise ReplayError(f"expected one array [rows, layers, top_k] of {', '.join(_EXPERTS)}, got {header.arrays}")
    if header.start < 0 or (header.start > 0) != (header.base is not None):
        raise ReplayError(f"rows from token {header.start} on after call {header.base!r}")
    return RoutedExperts(arrays[0], header.start, header.base)


def decode_mask(data: bytes) -> SamplingMask:
    """The mask in a blob, which is not copied. Raises ReplayError."""
    header, arrays = _decode("sampling_mask", data)
    if len(arrays) != 2 or any(array.ndim != 1 or array.dtype != IDS for array in arrays):
        raise ReplayError(f"expected two arrays [n] of int32, got {header.arrays}")
    offsets, token_ids = arrays
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(token_ids) or np.any(np.diff(offsets) < 0):
        raise ReplayError(f"offsets that don't ascend from 0 to {len(token_ids)}")
    return SamplingMask(token_ids, offsets)


def mask_of(supports: Sequence[Sequence[int]]) -> SamplingMask:
    """The mask with these tokens for each token. Raises OverflowError for an id outside int32."""
    offsets = np.zeros(len(supports) + 1, dtype=IDS)
    np.cumsum([len(support) for support in supports], out=offsets[1:])
    token_ids = np.array([token for support in supports for token in support], dtype=IDS)
    return SamplingMask(token_ids, offsets)


def _encode(kind: ReplayField, arrays: Sequence[NDArray[Any]], **fields: Any) -> bytes:
    little = [np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")) for array in arrays]
    header = _Header(kind, [_Array(array.dtype.name, list(array.shape)) for array in little], **fields)
    return b"".join([_FORM, msgspec.json.encode(header), b"\n", *(array.tobytes() for array in little)])


def _decode(kind: ReplayField, data: bytes) -> tuple[_Header, list[NDArray[Any]]]:
    if not data.startswith(_FORM):
        raise ReplayError(f"expected the form {_FORM.decode().strip()!r}, got {data[:20]!r}")
    end = data.find(b"\n", len(_FORM))
    try:
        header = _header.decode(data[len(_FORM) : end])
        dtypes = [np.dtype(array.dtype).newbyteorder("<") for array in header.arrays]
    except (msgspec.DecodeError, TypeError) as error:
        raise ReplayError(f"a header that can't be read: {error}") from None
    if header.kind != kind:
        raise ReplayError(f"expected {kind}, got {header.kind}")
    found, at = [], end + 1
    for array, dtype in zip(header.arrays, dtypes, strict=True):
        if dtype.kind not in "iu" or any(side < 0 for side in array.shape):
            raise ReplayError(f"an array of {array.dtype} {array.shape}")
        size = math.prod(array.shape)
        if at + size * dtype.itemsize > len(data):
            raise ReplayError("the arrays are cut off")
        found.append(np.frombuffer(data, dtype, size, at).reshape(array.shape))
        at += size * dtype.itemsize
    if at != len(data):
        raise ReplayError(f"{len(data) - at} bytes follow the arrays")
    return header, found
