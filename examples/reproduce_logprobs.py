"""vLLM's logprobs once more, from what a trajectory records: a check of the facts that an importance ratio needs (docs/ratios.md).

    polar trajectories --format jsonl | python examples/reproduce_logprobs.py http://127.0.0.1:8000 MODEL

The server must have the weights that sampled the tokens, and run with `--max-logprobs -1`. It needs numpy, and Polar only for the lines.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ANSWER_S = 600.0
GREEDY = 1e-5
"""Below this temperature vLLM takes the likeliest token, and truncates nothing."""
LEAST_TEMPERATURE = 1e-2
"""vLLM raises other temperatures to this."""
NEUTRAL = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "logit_bias": None}
"""Settings that are known not to change a logit; vLLM's penalties can't be computed from logprobs."""

Floats = NDArray[np.float64]


def is_reproducible(call: Mapping[str, Any]) -> bool:
    """Whether the record of a call's sampling says all that its logprobs depend on."""
    sampling = call["sampling"]
    if call["has_media"] or sampling.get("grammar_source") != "none":
        return False  # vLLM applies a grammar before it takes raw logprobs, too
    if call["plain"] or call["logprobs_mode"] == "raw":
        return True
    known = all(name in sampling for name in ("temperature", "top_p", "top_k", "min_p"))
    neutral = all(sampling.get(name) == value for name, value in NEUTRAL.items())
    return call["logprobs_mode"] == "processed" and known and neutral


def reproduced(plain: Floats, call: Mapping[str, Any]) -> Floats:
    """The logprobs that vLLM returned with a call's tokens, for all tokens that it could have sampled instead.

    `plain`: float64 [tokens, vocabulary], the model's own distributions. From them come temperature, min_p, top_k, then top_p.
    """
    sampling = call["sampling"]
    if call["plain"] or call["logprobs_mode"] == "raw" or sampling["temperature"] < GREEDY:
        return plain
    logprobs = _normal(plain / max(sampling["temperature"], LEAST_TEMPERATURE))
    if sampling["min_p"] > 0:
        logprobs[logprobs < logprobs.max(axis=-1, keepdims=True) + np.log(sampling["min_p"])] = -np.inf
    if sampling["top_k"] > 0:
        logprobs[logprobs < np.sort(logprobs, axis=-1)[:, [-sampling["top_k"]]]] = -np.inf
    ascending = np.argsort(logprobs, axis=-1)
    below = np.cumsum(np.exp(np.take_along_axis(_normal(logprobs), ascending, axis=-1)), axis=-1)
    dropped = below <= 1 - sampling["top_p"]
    dropped[:, -1] = False  # the likeliest token always stays
    np.put_along_axis(logprobs, ascending, np.where(dropped, -np.inf, np.sort(logprobs, axis=-1)), axis=-1)
    return _normal(logprobs)


def _normal(logits: Floats) -> Floats:
    """Logprobs: rows whose probabilities sum to 1."""
    highest = logits.max(axis=-1, keepdims=True)
    total: Floats = np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True)) + highest
    return logits - total


def distributions(url: str, model: str, token_ids: Sequence[int]) -> Floats:
    """float64 [tokens, vocabulary]: the model's own logprobs of every token at each place; NaN at the first."""
    # Without top_k, which prompts don't depend on, a server that returns sampling masks fails.
    sampling = {"max_tokens": 1, "temperature": 1, "top_k": 1}
    fields = {"model": model, "prompt": list(token_ids), "prompt_logprobs": -1} | sampling
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(fields).encode(), headers)  # noqa: S310 - the user's own
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310
        reported = json.load(answer)["choices"][0]["prompt_logprobs"]
    found = np.full((len(reported), len(reported[1])), np.nan)
    for row, entries in zip(found[1:], reported[1:], strict=True):
        row[[int(token) for token in entries]] = [entry["logprob"] for entry in entries.values()]
    return found


def differences(plain: Floats, trace: Mapping[str, Any], call: Mapping[str, Any]) -> Floats:
    """float64 [trained tokens of the call]: recorded less reproduced."""
    place = slice(call["start"], call["end"])
    ids = trace["token_ids"][place]
    found: Floats = np.array(trace["logprobs"][place]) - reproduced(plain[place], call)[np.arange(len(ids)), ids]
    return found


def main(lines: Iterable[str], url: str, model: str) -> None:
    """Print the largest difference of each call, or that its record doesn't suffice."""
    for trajectory in map(json.loads, lines):
        for trace in trajectory["traces"]:
            plain = distributions(url, model, trace["token_ids"])
            for call in trace["calls"]:
                known = is_reproducible(call)
                print(
                    call["call_id"],
                    f"{abs(differences(plain, trace, call)).max():.1e}" if known else "not known enough",
                )


if __name__ == "__main__":
    main(sys.stdin, *sys.argv[1:])
