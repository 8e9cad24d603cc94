"""A second opinion: what vLLM itself says of tokens that it is given, beside the logprobs that a trace carries.

vLLM scores a prompt (`prompt_logprobs` on /v1/completions) with the plain distribution, whatever the sampling: exact at temperature 1
without truncation, and after `transformed` for the rest.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.vllm_cpu.serve import Server

ANSWER_S = 120.0
ALL = -1
"""Of vLLM's `prompt_logprobs`: the whole vocabulary."""
MEDIAN = 1e-3
"""In nats; what the same weights differ by between sampling and scoring is far below, in float32 and in bfloat16."""
P99 = 1e-2
"""Most tokens of a trained model are all but certain, and agree whatever they are: a median alone would pass a trace with swapped ones."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """|Δlogprob| over some tokens, in nats."""

    tokens: int
    median: float
    p99: float
    largest: float

    @classmethod
    def of(cls, deltas: Floats) -> Agreement:
        """Of at least one token; one that can't be scored differs without end."""
        sizes = np.nan_to_num(np.abs(deltas), nan=np.inf)
        return cls(len(sizes), *(float(one) for one in np.quantile(sizes, [0.5, 0.99, 1.0], method="higher")))

    @property
    def is_faithful(self) -> bool:
        """These are the tokens that were sampled, with the logprobs that they were sampled at."""
        return self.median < MEDIAN and self.p99 < P99

    def __str__(self) -> str:
        return f"{self.tokens} tokens, |Δlogprob| median {self.median:.1e}, p99 {self.p99:.1e}, max {self.largest:.1e}"


def scores(server: Server, token_ids: Sequence[int]) -> Floats:
    """The logprob of each token after those before it; NaN for the first."""
    reported = _prompt_logprobs(server, token_ids, 0)
    return np.array(
        [np.nan] + [one[str(token)]["logprob"] for token, one in zip(token_ids[1:], reported[1:], strict=True)]
    )


def distributions(server: Server, token_ids: Sequence[int]) -> Floats:
    """(tokens, vocabulary): logprobs of all tokens at each place; NaN at the first."""
    reported = _prompt_logprobs(server, token_ids, ALL)
    found = np.full((len(token_ids), len(reported[1])), np.nan)
    for row, entries in zip(found[1:], reported[1:], strict=True):
        row[[int(token) for token in entries]] = [entry["logprob"] for entry in entries.values()]
    return found


def transformed(logprobs: Floats, sampling: Mapping[str, Any]) -> Floats:
    """What sampling makes of plain distributions, one a row: temperature, then top_k, then top_p, then the rest sums to 1 again.

    As vLLM does it: of top_p the likeliest tokens stay whose sum is needed to reach it, the one that reaches it among them.
    """
    logits = logprobs / sampling.get("temperature", 1.0)
    top_k, top_p = sampling.get("top_k") or 0, sampling.get("top_p", 1.0)
    if top_k > 0:
        least = np.sort(logits, axis=-1)[:, [-top_k]]
        logits = np.where(logits < least, -np.inf, logits)
    if top_p < 1.0:
        order = np.argsort(logits, axis=-1)
        below = np.cumsum(np.exp(np.take_along_axis(_normal(logits), order, axis=-1)), axis=-1)
        out = below <= 1.0 - top_p
        out[:, -1] = False
        dropped = np.zeros_like(out)
        np.put_along_axis(dropped, order, out, axis=-1)
        logits = np.where(dropped, -np.inf, logits)
    return _normal(logits)


def _normal(logits: Floats) -> Floats:
    highest = logits.max(axis=-1, keepdims=True)
    total: Floats = np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True)) + highest
    return logits - total


def _prompt_logprobs(server: Server, token_ids: Sequence[int], alternatives: int) -> list[dict[str, Any]]:
    fields = {
        "model": server.model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 1.0,
        "top_k": 1,  # without it a server that returns sampling masks fails; prompts aren't truncated
        "prompt_logprobs": alternatives,
    }
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(fields).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        reported: list[dict[str, Any]] = json.load(answer)["choices"][0]["prompt_logprobs"]
    return reported
