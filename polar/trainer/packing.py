"""Packs rows without padding into batches with a limit on tokens, for attention kernels that take variable lengths.

Invariant: every trained token is in exactly one batch, unless the caller chose to cut or drop long rows, which is counted. A row's tokens
stay together and in order. The same rows give the same batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polar.trainer.rows import Floats, Row, Versions
from topics.calls.media_marks import place_of
from topics.types.completion import Medium
from topics.types.errors import InputError, NotReadyError
from topics.types.tokens import Ids, Logprobs

TooLong = Literal["refuse", "cut", "drop"]
TOKEN_ARRAYS = ("token_ids", "loss_mask", "logprobs", "advantages", "weights", "policy_versions", "publications")
"""The arrays of a row with one value per token."""


@dataclass(frozen=True)
class Batch:
    """k sequences end to end, n tokens in all."""

    token_ids: Ids
    """int32 [n]"""
    positions: NDArray[np.int32]
    """int32 [n], counted from 0 in each sequence"""
    cu_seqlens: NDArray[np.int32]
    """int32 [k+1]: sequence i is [cu_seqlens[i], cu_seqlens[i+1])"""
    loss_mask: NDArray[np.uint8]
    logprobs: Logprobs
    advantages: Floats
    weights: Floats
    policy_versions: Versions
    publications: Versions
    """This array and the five above: as in `Row`, [n]."""
    sequences: list[tuple[str, int]]
    """For sequence i: the session id and the index into its trajectory's traces."""
    media: list[list[Medium]]
    """For sequence i: its images and sounds; `position` counts from the sequence's first token."""

    @property
    def max_seqlen(self) -> int:
        return int(np.diff(self.cu_seqlens).max())

    def torch(self, device: str | None = None) -> dict[str, Any]:
        """The arrays as tensors by name. Without `device` they share the batch's memory. Raises NotReadyError if torch isn't installed."""
        try:
            torch = import_module("torch")
        except ModuleNotFoundError:
            raise NotReadyError(
                "tensors need PyTorch, which Polar doesn't install: `pip install torch`, or use the arrays"
            ) from None
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def pack(
    rows: Sequence[Row], max_tokens: int, *, too_long: TooLong = "refuse", counts: Counter[str] | None = None
) -> list[Batch]:
    """Pack rows by first fit, longest first; within a batch, rows keep their order.

    `too_long`: a row of more than `max_tokens` tokens is refused (InputError names it), cut after `max_tokens`, or dropped. `counts`
    receives `cut_row` or `too_long_row`, and `cut_token`, the number of trained tokens lost. The weights of other tokens don't change.
    """
    if max_tokens < 1:
        raise InputError("max_tokens", max_tokens, "must be 1 or more")
    fitting = _fitting(rows, max_tokens, too_long, Counter() if counts is None else counts)
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(fitting)), key=lambda i: (-len(fitting[i]), i)):
        size = len(fitting[index])
        at = next((number for number, left in enumerate(room) if left >= size), len(bins))
        if at == len(bins):
            bins.append([])
            room.append(max_tokens)
        bins[at].append(index)
        room[at] -= size
    return [_batch([fitting[index] for index in sorted(chosen)]) for chosen in bins]


def _fitting(rows: Sequence[Row], max_tokens: int, too_long: TooLong, counts: Counter[str]) -> list[Row]:
    found = []
    for row in rows:
        if len(row) <= max_tokens:
            found.append(row)
            continue
        if too_long == "refuse":
            reason = f"{row.session_id}, trace {row.trace}, has {len(row)} tokens; allow more, or pass too_long='cut' or 'drop'"
            raise InputError("max_tokens", max_tokens, reason)
        cut = _cut(row, max_tokens)
        is_kept = too_long == "cut" and bool(cut.loss_mask.any())
        counts["cut_row" if is_kept else "too_long_row"] += 1
        counts["cut_token"] += int(row.loss_mask.sum()) - is_kept * int(cut.loss_mask.sum())
        if is_kept:
            found.append(cut)
    return found


def _cut(row: Row, max_tokens: int) -> Row:
    """The row's beginning. A cut never leaves a part of an image's placeholders: they end before the next trained token."""
    trained = np.flatnonzero(row.loss_mask[:max_tokens])
    last = int(trained[-1]) if len(trained) else -1
    end = min([max_tokens, *(place for medium in row.media if (place := place_of(medium)) > last)])
    arrays = {name: getattr(row, name)[:end] for name in TOKEN_ARRAYS}
    return replace(row, **arrays, media=[medium for medium in row.media if place_of(medium) < end])


def _batch(rows: Sequence[Row]) -> Batch:
    arrays: dict[str, Any] = {name: np.concatenate([getattr(row, name) for row in rows]) for name in TOKEN_ARRAYS}
    return Batch(
        **arrays,
        positions=np.concatenate([np.arange(len(row), dtype=np.int32) for row in rows]),
        cu_seqlens=np.cumsum([0, *map(len, rows)], dtype=np.int32),
        sequences=[(row.session_id, row.trace) for row in rows],
        media=[row.media for row in rows],
    )
