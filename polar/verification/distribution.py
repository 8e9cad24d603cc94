"""From an engine's plain distribution to the one that a call sampled from: temperature, min_p, top_k and top_p, in vLLM's order.

An engine scores a prompt by its plain distribution, whatever the sampling of the request. A row holds one position's plain logprobs, with
the token that stands there first. A row needs the likeliest `alternatives` tokens only: what lies below top_k is never sampled.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topics.types.completion import Sampling, truncates

Floats = NDArray[np.float64]
ALL = -1
"""The whole vocabulary, as vLLM's `prompt_logprobs` spells it."""
LEAST_TEMPERATURE = 1e-2
"""vLLM raises other temperatures to this."""


def has_plain_logprobs(sampling: Sampling) -> bool:
    """Whether processed logprobs are the engine's plain ones. A greedy call's are: vLLM ignores temperature and truncation."""
    is_cut = truncates(sampling.top_p, sampling.top_k, sampling.min_p)
    return sampling.greedy or (_temperature(sampling) == 1.0 and not is_cut)


def alternatives(sampling: Sampling) -> int:
    """How many of a position's likeliest tokens `sampled_logprobs` needs; 0: none but the token itself."""
    if has_plain_logprobs(sampling):
        return 0
    return _top_k(sampling) or ALL


def sampled_logprobs(rows: Floats, sampling: Sampling) -> Floats:
    """float64 [n]: logprob of each row's first token in the distribution that `sampling` makes of the row; -inf: it can't be sampled.

    `rows`: float64 [n, m], plain logprobs; -inf fills rows that have fewer tokens.
    """
    if has_plain_logprobs(sampling):
        return rows[:, 0]
    logits = rows / _temperature(sampling)
    if sampling.min_p:
        # Relative to the likeliest token, so the sum of the rest doesn't matter.
        logits = np.where(logits < logits.max(axis=-1, keepdims=True) + np.log(sampling.min_p), -np.inf, logits)
    top_k = _top_k(sampling)
    if 0 < top_k < logits.shape[-1]:
        logits = np.where(logits < np.sort(logits, axis=-1)[:, [-top_k]], -np.inf, logits)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        logits = _nucleus(logits, sampling.top_p)
    return _normal(logits)[:, 0]


def _nucleus(logits: Floats, top_p: float) -> Floats:
    """The likeliest tokens whose sum reaches `top_p`, including the one that reaches it."""
    order = np.argsort(logits, axis=-1)
    sums = np.cumsum(np.exp(np.take_along_axis(_normal(logits), order, axis=-1)), axis=-1)
    out = sums <= 1.0 - top_p
    out[:, -1] = False
    dropped = np.zeros_like(out)
    np.put_along_axis(dropped, order, out, axis=-1)
    return np.where(dropped, -np.inf, logits)


def _normal(logits: Floats) -> Floats:
    """The rows as logprobs: each sums to 1."""
    highest = logits.max(axis=-1, keepdims=True)
    total: Floats = np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True)) + highest
    return logits - total


def _temperature(sampling: Sampling) -> float:
    return 1.0 if sampling.temperature is None else max(sampling.temperature, LEAST_TEMPERATURE)


def _top_k(sampling: Sampling) -> int:
    """0: no limit."""
    return max(sampling.top_k or 0, 0)
