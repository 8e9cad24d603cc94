"""What vLLM's generate returns beside tokens: the routed experts and the sampling masks, requested, verified and limited.

Read from vLLM 0.32. With `--enable-return-routed-experts` a choice has `routed_experts`: base64 of a `.npy` file, uint8 up to 256 experts,
otherwise uint16, [rows, layers, top_k], a row for each token of prompt and answer but the last. The rows of cached prompt tokens are those
of the request that computed them. `routed_experts_prompt_start` leaves out the first rows: a call that continues another one asks for new
rows only, or a session would cost the square of its length. With `--return-sampling-mask` a choice has `sampling_mask`: a list of token ids
for each sampled token. The server then answers 500 to requests at temperature 0 or without top_k.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from proxy.chat import ReplayValue
from proxy.errors import EngineError
from topics.types.completion import ReplayField
from topics.types.replay import ReplayError, RoutedExperts, encode, mask_of
from topics.types.tokens import Ids

CALL_BYTES = 64 * 1024 * 1024
"""Most bytes of one value on the wire: experts of 131,000 tokens of a model with 48 layers and 8 experts for each token."""
ROW_BYTES = 1024.0
"""Bytes on the wire of a token's experts until an answer shows the model's number; DeepSeek-V3 has 651."""
ABSENT = (b"", b"null")

_base64 = msgspec.json.Decoder(bytes)
_supports = msgspec.json.Decoder(list[list[int]])


@dataclass(frozen=True)
class FirstRow:
    """Where a call's routed experts begin."""

    start: int
    base: str | None
    """The call that has the rows before `start`."""
    fits: bool
    """False: the prompt's rows are more than CALL_BYTES; they aren't requested, and nothing is captured."""


class VllmReplay:
    """The values that one engine captures."""

    def __init__(self, capture: Collection[ReplayField]) -> None:
        self._capture = capture
        self._row_bytes = ROW_BYTES

    @property
    def wants_experts(self) -> bool:
        return "routed_experts" in self._capture

    def require_masks(self, params: Mapping[str, Any]) -> None:
        """Raises EngineError for sampling parameters that a server which returns masks answers with an error that doesn't say why."""
        if "sampling_mask" not in self._capture:
            return
        top_k, temperature = params.get("top_k") or 0, params.get("temperature", 1.0)
        if top_k < 1 or temperature == 0:
            raise EngineError(
                "refused",
                "vLLM returns sampling masks only with top_k > 0 and temperature > 0, and this call has "
                f"top_k {top_k} and temperature {temperature}: set them in the task (sampling), or leave sampling_mask out of "
                "the engine's `capture` and start vLLM without --return-sampling-mask",
                status=400,
            )

    def first_row(self, prompt: int, covered: int, base: str | None) -> FirstRow:
        """For a prompt of this length, of which `base` has the rows of the first `covered` tokens."""
        fits = (prompt - covered) * self._row_bytes <= CALL_BYTES
        if not fits:
            return FirstRow(prompt, None, fits=False)
        return FirstRow(covered, base if covered else None, fits=True)

    def values(
        self, experts: msgspec.Raw, mask: msgspec.Raw, first: FirstRow, prompt: int, sampled: Ids
    ) -> tuple[tuple[ReplayValue, ...], dict[ReplayField, str]]:
        """What is to be stored of a choice with this many prompt tokens, and why the rest isn't."""
        values: list[ReplayValue] = []
        lost: dict[ReplayField, str] = {}
        rows = prompt + len(sampled) - 1 - first.start
        for field in sorted(self._capture):
            wire = bytes(experts if field == "routed_experts" else mask)
            if wire in ABSENT:
                lost[field] = "missing"
                continue
            if field == "routed_experts":
                self._row_bytes = len(wire) / rows if rows else self._row_bytes
                convert = partial(_experts, wire, first, rows)
            else:
                convert = partial(_mask, wire, sampled)
            if len(wire) > CALL_BYTES or (field == "routed_experts" and not first.fits):
                lost[field] = "too_large"
            else:
                values.append(ReplayValue(field, len(wire), convert))
        return tuple(values), lost


def _experts(wire: bytes, first: FirstRow, rows: int) -> bytes:
    array = _npy(_decoded(_base64, wire))
    if array.ndim != 3 or len(array) != rows:
        raise ReplayError(f"expected experts of {rows} tokens, got an array {list(array.shape)}")
    return encode(RoutedExperts(array, first.start, first.base))


def _npy(data: bytes) -> NDArray[Any]:
    """The array in a `.npy` file of format 1.0, as numpy writes small headers; not copied. Raises ReplayError."""
    file = io.BytesIO(data)
    try:
        np.lib.format.read_magic(file)
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if is_fortran or dtype.kind not in "iu":
            raise ReplayError(f"an array of {dtype} in Fortran order: {is_fortran}")
        return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape)
    except ValueError as error:
        raise ReplayError(f"no array: {error}") from None


def _mask(wire: bytes, sampled: Ids) -> bytes:
    supports = _decoded(_supports, wire)
    if len(supports) != len(sampled):
        raise ReplayError(f"{len(sampled)} sampled tokens, {len(supports)} masks")
    for token, support in zip(sampled.tolist(), supports, strict=True):
        if token not in support:
            raise ReplayError(f"token {token} was sampled and is not in its mask of {len(support)} tokens")
    try:
        return encode(mask_of(supports))
    except OverflowError as error:
        raise ReplayError(str(error)) from None


def _decoded(decoder: msgspec.json.Decoder[Any], wire: bytes) -> Any:
    try:
        return decoder.decode(wire)
    except msgspec.DecodeError as error:
        raise ReplayError(str(error)) from None
