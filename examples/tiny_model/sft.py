"""Supervised fine-tuning in two stages: snippets that copy, then whole sessions among fresh snippets; and the check before RL.

The recipe's numbers are `FULL`'s; `QUICK` is for tests: a model that calls its tools in the right form, and often the wrong thing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from examples.tiny_model.demonstrations import Message, demonstration, snippet
from examples.tiny_model.tokenizer import ids

BATCH_TOKENS = 2048
OTHERS = 0.2
"""Weight of tokens that the assistant didn't write: they teach what a conversation looks like."""
WARM_UP = 20
"""Steps."""
LAST = 0.1
"""Share of the learning rate that is left at a stage's last step."""


@dataclass(frozen=True)
class Recipe:
    """How much of what: counts of conversations, and the two learning rates."""

    snippets: int
    sessions: int
    fresh_snippets: int
    chains: int
    """Ten sessions in one conversation: tests hold long ones, and a model that never saw any leaves its form there."""
    rates: tuple[float, float]


FULL = Recipe(16_000, 6_000, 8_000, 0, (2e-3, 1e-3))
QUICK = Recipe(9_000, 1_000, 1_000, 40, (2e-3, 1e-3))
CHAINED = 10

Report = Callable[[str], None]


def fine_tune(model: Any, tokenizer: Any, seed: int, recipe: Recipe, report: Report) -> None:
    """Both stages."""
    rng = random.Random(seed)
    copies = [snippet(rng) for _ in range(recipe.snippets)]
    mixed = [demonstration(rng) for _ in range(recipe.sessions)] + [snippet(rng) for _ in range(recipe.fresh_snippets)]
    mixed += [[message for _ in range(CHAINED) for message in demonstration(rng)] for _ in range(recipe.chains)]
    for name, conversations, rate in zip(("snippets", "sessions"), (copies, mixed), recipe.rates, strict=True):
        batches = list(_batches([Sample.of(tokenizer, each) for each in conversations], rng))
        _train(model, batches, rate, partial(_say, report, name))


def _say(report: Report, stage: str, text: str) -> None:
    report(f"{stage}: {text}")


@dataclass(frozen=True)
class Sample:
    """A conversation as ids, and which of them the assistant wrote, its end of turn included."""

    token_ids: list[int]
    is_own: list[bool]

    @classmethod
    def of(cls, tokenizer: Any, messages: Sequence[Message]) -> Sample:
        token_ids = ids(tokenizer, messages)
        header = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
        is_own = [False] * len(token_ids)
        at = 0
        while at < len(token_ids):
            if token_ids[at : at + len(header)] != header:
                at += 1
                continue
            at += len(header)
            end = token_ids.index(tokenizer.eos_token_id, at) + 1
            is_own[at:end] = [True] * (end - at)
            at = end
        return cls(token_ids, is_own)


@dataclass(frozen=True)
class Batch:
    """Sequences of about one length, padded at the end."""

    token_ids: torch.Tensor
    """int64 [k, n]"""
    weights: torch.Tensor
    """float32 [k, n]: of each token as something to predict; 0 for padding and for first tokens"""


def _batches(samples: Sequence[Sample], rng: random.Random) -> Iterator[Batch]:
    """All samples, shuffled; those of one length together, at most `BATCH_TOKENS` with their padding."""
    shuffled = sorted(samples, key=lambda sample: (len(sample.token_ids) // 16, rng.random()))
    chosen: list[list[Sample]] = [[]]
    for sample in shuffled:
        longest = max(len(each.token_ids) for each in [*chosen[-1], sample])
        if longest * (len(chosen[-1]) + 1) > BATCH_TOKENS and chosen[-1]:
            chosen.append([])
        chosen[-1].append(sample)
    rng.shuffle(chosen)
    return map(_batch, chosen)


def _batch(samples: Sequence[Sample]) -> Batch:
    size = max(len(sample.token_ids) for sample in samples)
    token_ids = np.zeros((len(samples), size), dtype=np.int64)
    weights = np.zeros((len(samples), size), dtype=np.float32)
    for row, sample in enumerate(samples):
        token_ids[row, : len(sample.token_ids)] = sample.token_ids
        weights[row, : len(sample.token_ids)] = np.where(sample.is_own, 1.0, OTHERS)
    weights[:, 0] = 0
    return Batch(torch.from_numpy(token_ids), torch.from_numpy(weights))


def _train(model: Any, batches: Sequence[Batch], rate: float, report: Report) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    for step, batch in enumerate(batches):
        for group in optimiser.param_groups:
            group["lr"] = rate * min((step + 1) / WARM_UP, 1 - (1 - LAST) * step / len(batches))
        logits = model(input_ids=batch.token_ids).logits
        losses = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), batch.token_ids[:, 1:].flatten(), reduction="none"
        )
        weights = batch.weights[:, 1:].flatten()
        loss = (losses * weights).sum() / weights.sum()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0 or step == len(batches) - 1:
            report(f"step {step + 1} of {len(batches)}, loss {loss.item():.3f}")


@dataclass(frozen=True)
class Copying:
    """Mean probability of what a good session copies, given all before it."""

    searched_key: float
    old_value: float


def copying(model: Any, tokenizer: Any, seed: int, sessions: int = 200) -> Copying:
    """Teacher-forced on good sessions. What is below 0.98 here reinforcement learning doesn't lift."""
    rng = random.Random(seed)
    keys, values = [], []
    for _ in range(sessions):
        messages = demonstration(rng, "good")
        key = messages[1]["tool_calls"][0]["function"]["arguments"]["key"]
        keys.append(_probability(model, tokenizer, messages[:2], f'"key": "{key}'))
        old = messages[3]["tool_calls"][0]["function"]["arguments"]["old"]
        values.append(_probability(model, tokenizer, messages[:4], f'"old": "{old}'))
    return Copying(float(np.mean(keys)), float(np.mean(values)))


def _probability(model: Any, tokenizer: Any, messages: Sequence[Message], ending: str) -> float:
    """Of the last word of `ending` where it stands in the conversation's last message."""
    text = tokenizer.apply_chat_template(list(messages), tokenize=False)
    before = text[: text.rindex(ending) + len(ending)]
    token_ids = torch.tensor([tokenizer.encode(before, add_special_tokens=False)])
    with torch.no_grad():
        logits = model(input_ids=token_ids).logits[0, -2]
    return float(torch.softmax(logits, -1)[token_ids[0, -1]])
