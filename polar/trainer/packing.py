"""Rows laid end to end, without padding, in batches of at most so many tokens: what attention kernels for variable lengths take.

Invariant: every trained token is in exactly one batch, unless it was cut or dropped as asked, and counted; a row's tokens stay together
and in order; the same rows make the same batches.
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
from topics.types.errors import InputError, NotReady
from topics.types.tokens import Ids, Logprobs

TooLong = Literal["refuse", "cut", "drop"]
OF_TOKENS = ("token_ids", "loss_mask", "logprobs", "advantages", "weights", "policy_versions")
"""A row's arrays."""


@dataclass(frozen=True)
class Batch:
    """Sequences end to end: n tokens, k sequences."""

    token_ids: Ids
    """int32 [n]"""
    positions: NDArray[np.int32]
    """int32 [n], from 0 in each sequence"""
    cu_seqlens: NDArray[np.int32]
    """int32 [k+1]: sequence i is [cu_seqlens[i], cu_seqlens[i+1])"""
    loss_mask: NDArray[np.uint8]
    logprobs: Logprobs
    advantages: Floats
    weights: Floats
    policy_versions: Versions
    """As those of rows."""
    sequences: list[tuple[str, int]]
    """Whose sequence i is: session id, and index into its trajectory's traces."""

    @property
    def max_seqlen(self) -> int:
        """Of the longest sequence."""
        return int(np.diff(self.cu_seqlens).max())

    def torch(self, device: str | None = None) -> dict[str, Any]:
        """The arrays by name, as tensors; without a `device` they share the batch's memory. Raises NotReady where torch isn't installed."""
        try:
            torch = import_module("torch")
        except ModuleNotFoundError:
            raise NotReady(
                "tensors need PyTorch, which Polar doesn't bring: `pip install torch`, or use the arrays"
            ) from None
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def pack(
    rows: Sequence[Row], max_tokens: int, *, too_long: TooLong = "refuse", counts: Counter[str] | None = None
) -> list[Batch]:
    """First fit decreasing, by length; within a batch rows are in the order given.

    `too_long`: a row of more than `max_tokens` is refused (InputError, which names it), cut behind them, or dropped. `counts` gets
    `cut_row` or `too_long_row`, and `cut_token`: the trained ones that were lost; weights stay what they were.
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
            reason = f"{row.session_id}, trace {row.trace}, has {len(row)} tokens; allow more, or say too_long='cut' or 'drop'"
            raise InputError("max_tokens", max_tokens, reason)
        cut = replace(row, **{name: getattr(row, name)[:max_tokens] for name in OF_TOKENS})
        is_kept = too_long == "cut" and bool(cut.loss_mask.any())
        counts["cut_row" if is_kept else "too_long_row"] += 1
        counts["cut_token"] += int(row.loss_mask.sum()) - is_kept * int(cut.loss_mask.sum())
        if is_kept:
            found.append(cut)
    return found


def _batch(rows: Sequence[Row]) -> Batch:
    arrays: dict[str, Any] = {name: np.concatenate([getattr(row, name) for row in rows]) for name in OF_TOKENS}
    return Batch(
        **arrays,
        positions=np.concatenate([np.arange(len(row), dtype=np.int32) for row in rows]),
        cu_seqlens=np.cumsum([0, *map(len, rows)], dtype=np.int32),
        sequences=[(row.session_id, row.trace) for row in rows],
    )
