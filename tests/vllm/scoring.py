"""A second opinion: what vLLM itself says of tokens that it is given, beside the logprobs of a trace; asked as `polar verify` does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from examples.vllm_cpu.serve import Server
from polar.verification import agreement
from polar.verification.distribution import Floats
from polar.verification.scoring import Scorer

MEDIAN = 1e-3
"""In nats; what the same weights differ by between sampling and scoring is far below, in float32 and in bfloat16."""
P99 = 1e-2
"""Most tokens of a trained model are all but certain, and agree whatever they are: a median alone would pass a trace with swapped ones."""


class Agreement(agreement.Agreement):
    """|Δlogprob| over some tokens, in nats."""

    @property
    def is_faithful(self) -> bool:
        """These are the tokens that were sampled, with the logprobs that they were sampled at."""
        return self.median < MEDIAN and self.p99 < P99


def rows(server: Server, token_ids: Sequence[int], alternatives: int) -> Floats:
    """As `Scorer.rows`."""

    async def score() -> Floats:
        scorer = Scorer(server.url, server.model)
        try:
            return await scorer.rows(np.array(token_ids, np.int32), alternatives)
        finally:
            scorer.stop()

    return asyncio.run(score())


def scores(server: Server, token_ids: Sequence[int]) -> Floats:
    """The plain logprob of each token after those before it; NaN for the first."""
    plain: Floats = rows(server, token_ids, 0)[:, 0]
    return plain
