"""A plain distribution becomes the one that a call sampled from, as by a statement of vLLM's steps that goes token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.verification.distribution import ALL, Floats, alternatives, has_plain_logprobs, sampled_logprobs
from topics.types.completion import Sampling

PLAIN = (
    Sampling(),
    Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0),
    Sampling(temperature=1.0, top_k=-1),
    Sampling(temperature=0.0, top_p=0.1, top_k=1),
)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.none() | st.floats(0.2, 2.0),
    top_p=st.none() | st.floats(0.05, 1.0),
    top_k=st.none() | st.integers(-1, 8),
    min_p=st.none() | st.floats(0.0, 0.5),
)


def row(*logits: float) -> Floats:
    """One position's plain logprobs."""
    values = np.array([logits])
    found: Floats = values - np.log(np.exp(values).sum())
    return found


def by_hand(logprobs: list[float], sampling: Sampling) -> float:
    """The first token's logprob: temperature, tokens likely enough for min_p, the top_k likeliest, the fewest that reach top_p."""
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    logits = [logprob / temperature for logprob in logprobs]
    least = max(logits) + (math.log(sampling.min_p) if sampling.min_p else -math.inf)
    order = sorted((n for n in range(len(logits)) if logits[n] >= least), key=lambda n: -logits[n])
    if sampling.top_k and sampling.top_k > 0:
        order = order[: sampling.top_k]
    total = sum(math.exp(logits[n]) for n in order)
    enough = math.inf if sampling.top_p is None or sampling.top_p >= 1.0 else sampling.top_p
    kept: list[int] = []
    reached = 0.0
    for n in order:
        if kept and reached >= enough:
            break
        kept.append(n)
        reached += math.exp(logits[n]) / total
    return logits[0] - math.log(sum(math.exp(logits[n]) for n in kept)) if 0 in kept else -math.inf


@given(st.lists(st.floats(-8, 8), min_size=3, max_size=12, unique_by=lambda x: round(x, 2)), SAMPLINGS)
def test_it_is_what_a_statement_token_by_token_says(logits: list[float], sampling: Sampling) -> None:
    plain = row(*logits)
    found, expected = float(sampled_logprobs(plain, sampling)[0]), by_hand(plain[0].tolist(), sampling)
    # A sum that meets top_p to the last bit may fall on either side.
    nearby = [by_hand(plain[0].tolist(), _nudged(sampling, by)) for by in (-1e-9, 1e-9)]
    assert any(found == pytest.approx(each, abs=1e-6) for each in (expected, *nearby))


def _nudged(sampling: Sampling, by: float) -> Sampling:
    top_p = sampling.top_p
    return (
        sampling
        if top_p is None
        else Sampling(sampling.temperature, min(top_p + by, 1.0), sampling.top_k, sampling.min_p)
    )


@given(st.lists(st.floats(-8, 8), min_size=8, max_size=16, unique_by=lambda x: round(x, 2)), SAMPLINGS)
def test_the_likeliest_alternatives_are_enough_where_top_k_is_set(logits: list[float], sampling: Sampling) -> None:
    needed = alternatives(sampling)
    if needed <= 0:
        return
    plain = row(*logits)
    others = np.sort(plain[0, 1:])[::-1][:needed]
    few = np.concatenate((plain[0, :1], others, [-np.inf]))[None]
    assert sampled_logprobs(few, sampling)[0] == pytest.approx(sampled_logprobs(plain, sampling)[0], abs=1e-6)


@pytest.mark.parametrize("sampling", PLAIN)
def test_a_plain_distribution_needs_the_token_alone(sampling: Sampling) -> None:
    assert has_plain_logprobs(sampling)
    assert alternatives(sampling) == 0
    assert sampled_logprobs(np.array([[-0.5], [-2.0]]), sampling).tolist() == [-0.5, -2.0]


@pytest.mark.parametrize(
    ("sampling", "needed"),
    [
        (Sampling(temperature=0.7), ALL),
        (Sampling(top_p=0.9), ALL),
        (Sampling(min_p=0.1), ALL),
        (Sampling(temperature=0.7, top_k=20, top_p=0.8), 20),
    ],
)
def test_other_distributions_need_top_k_or_the_whole_vocabulary(sampling: Sampling, needed: int) -> None:
    assert not has_plain_logprobs(sampling)
    assert alternatives(sampling) == needed


def test_a_token_that_truncation_leaves_out_has_no_probability() -> None:
    assert sampled_logprobs(row(-5.0, 1.0, 0.9), Sampling(top_k=1))[0] == -np.inf
    assert sampled_logprobs(row(-5.0, 1.0, 0.9), Sampling(min_p=0.5))[0] == -np.inf
    assert sampled_logprobs(row(-5.0, 1.0, 0.9), Sampling(top_p=0.5))[0] == -np.inf
