"""Scores tokens at a vLLM server: `prompt_logprobs` of `/v1/completions`.

vLLM scores a prompt with its plain distribution, whatever its `--logprobs-mode`, and reads no prefix cache for it. A request holds the
logits of whole chunks of the prompt in the server's memory, so callers keep prompts and concurrency bounded.
"""

from __future__ import annotations

import msgspec
import numpy as np

from polar.verification.distribution import Floats
from proxy.engines.api_key import ApiKey
from proxy.engines.http import EngineHttp, decoded
from proxy.engines.retry import with_retries
from proxy.engines.versions import version_of
from proxy.errors import EngineError
from topics.types.tokens import Ids

SCORE_S = 120.0
"""For one prompt: 30,000 tokens take seconds on a GPU, and a busy server lets them wait."""
VERSION_S = 5.0
"""For the version of weights, which a server knows without computing."""
COMPLETIONS = "/v1/completions"
WEIGHTS = "/weight_info"


class _Entry(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Entry] | None] | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]


class _Weights(msgspec.Struct):
    weight_version: str | int | None = None


_bodies = msgspec.json.Decoder(_Body)
_weights = msgspec.json.Decoder(_Weights)


class Scorer:
    """One server of an engine."""

    def __init__(self, url: str, model: str, api_key: ApiKey | None = None) -> None:
        """`url` without `/v1`."""
        self.url = url
        self._model = model
        self._http = EngineHttp(url, deadline_s=SCORE_S, api_key=api_key)

    def stop(self) -> None:
        """Close connections; requests in flight fail."""
        self._http.stop()

    async def version(self) -> int | None:
        """The version that the server gives its weights; None if it names none, or has no such route. Raises EngineError."""
        answer = await self._http.get(WEIGHTS, VERSION_S)
        return None if answer is None else version_of(decoded(_weights, answer, "version of weights").weight_version)

    async def rows(self, ids: Ids, alternatives: int) -> Floats:
        """float64 [n, m]: plain logprobs at each of `n` places, those of the token that stands there first, then of the likeliest others.

        NaN in the first row, as nothing stands before it; -inf where a row has fewer tokens. `alternatives`: how many of the likeliest
        tokens the server is asked for; 0: none, -1: the whole vocabulary. Raises EngineError.
        """
        fields = {
            "model": self._model,
            "prompt": ids.tolist(),
            "max_tokens": 1,
            "temperature": 1.0,
            "top_k": 1,  # without it a server that returns sampling masks fails; prompts aren't truncated
            "prompt_logprobs": alternatives,
        }
        body = msgspec.json.encode(fields)
        answer = decoded(_bodies, await with_retries(lambda: self._http.post(COMPLETIONS, body)), "completion")
        scored = answer.choices[0].prompt_logprobs if answer.choices else None
        if scored is None or len(scored) != len(ids):
            found = "no" if scored is None else len(scored)
            raise EngineError("malformed", f"{found} prompt_logprobs for a prompt of {len(ids)} tokens")
        return _rows(ids, scored)


def _rows(ids: Ids, scored: list[dict[str, _Entry] | None]) -> Floats:
    rows = np.full((len(ids), max(len(entries or ()) for entries in scored) or 1), -np.inf)
    rows[0] = np.nan
    for place in range(1, len(ids)):
        entries, token = scored[place] or {}, str(ids[place])
        if token not in entries:
            raise EngineError("malformed", f"no logprob for the token at place {place} of the prompt")
        own = entries.pop(token).logprob
        rows[place, : len(entries) + 1] = [own, *(entry.logprob for entry in entries.values())]
    return rows
