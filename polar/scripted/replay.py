"""Routed experts and sampling masks in the format of a vLLM with `--enable-return-routed-experts` and `--return-sampling-mask`.

Experts and masks are invented. A token's experts depend on the token, its place and the layer, so that a row which is attributed to another
token shows. A mask has as many tokens as top_k allows, at most `MASKED`, the sampled one among them.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LAYERS: Final = 3
TOP_K: Final = 2
EXPERTS: Final = 16
MASKED: Final = 4


def experts_of(token_ids: Sequence[int], first: int = 0) -> NDArray[np.uint8]:
    """The experts of tokens whose first is at this place, uint8 [tokens, LAYERS, TOP_K]."""
    tokens = np.asarray(token_ids, dtype=np.int64)[:, None, None]
    places = np.arange(first, first + len(token_ids))[:, None, None]
    layers = np.arange(LAYERS)[None, :, None]
    ranks = np.arange(TOP_K)[None, None, :]
    return ((3 * tokens + 5 * places + 7 * layers + ranks) % EXPERTS).astype(np.uint8)


def mask_of(token_id: int, top_k: int, vocabulary: int) -> list[int]:
    """The tokens that truncation left in the place of a sampled one, ascending."""
    return sorted({(token_id + step) % vocabulary for step in range(min(top_k, MASKED))})


def routed_experts(prompt: Sequence[int], sampled: Sequence[int], start: int) -> str:
    """The wire's `routed_experts`: base64 of a `.npy` file with the rows from the token `start` on, without the last token's."""
    buffer = io.BytesIO()
    np.save(buffer, experts_of([*prompt, *sampled][start:-1], start), allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode()


def fields(
    returns: frozenset[str], prompt: Sequence[int], sampled: Sequence[int], start: int, top_k: int, vocabulary: int
) -> dict[str, Any]:
    """The fields of a choice; null for what the server doesn't return."""
    return {
        "routed_experts": routed_experts(prompt, sampled, start) if "routed_experts" in returns else None,
        "sampling_mask": [mask_of(token, top_k, vocabulary) for token in sampled]
        if "sampling_mask" in returns
        else None,
    }
