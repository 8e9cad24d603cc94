"""The gradient step: GRPO on rows of `polar.trainer`, with torch, on the processor.

Invariant: `drift` says how far the log-probabilities that came with the rows are from this model's own; before a step on samples of
this very model both are the same numbers but for rounding, and any trap between trainer and server (a late reload, weights that stayed,
a token in the wrong place) shows in the largest of them, not in their mean. Embeddings and head are frozen: theirs would not show.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from examples.grpo_tiny import checkpoint
from examples.tiny_model import model as tiny
from polar.trainer import Row

RATE = 2e-4
BETAS = (0.9, 0.95)
WARM_UP = 5
"""Steps."""
LAST = 0.1
"""Share of the rate that is left at the last step."""
CLIP = 0.2
"""Of the importance ratio."""
GRADIENT_NORM = 1.0
MINIBATCHES = 2
NEGATIVE = 0.2
"""What negative advantages are multiplied by: pushing down says little about what to do instead."""
PASS_TOKENS = 12_000
"""Of one forward pass, padding included."""


@dataclass(frozen=True)
class Padded:
    """Rows of one forward pass, as tensors of [rows, longest]."""

    token_ids: torch.Tensor
    mask: torch.Tensor
    logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class Drift:
    """Log-probabilities of sampled tokens, the engine's against the trainer's: absolute differences."""

    tokens: int
    largest: float
    mean: float


class Learner:
    """The model with its optimiser, and how far it has come."""

    def __init__(self, folder: Path, steps: int) -> None:
        """`folder`: a model's, or a checkpoint, whose optimiser goes on; `steps`: of the whole run, which the learning rate follows."""
        self.model = tiny.load(folder)
        for weight in (self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight):
            weight.requires_grad_(False)
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimiser = torch.optim.AdamW(trained, lr=RATE, betas=BETAS, weight_decay=0.0)
        if (folder / checkpoint.OPTIMISER).exists():
            self.optimiser.load_state_dict(torch.load(folder / checkpoint.OPTIMISER))
        self._trained = trained
        self._steps = steps

    def save(self, folder: Path) -> None:
        """Weights and optimiser, for a checkpoint."""
        tiny.save_weights(self.model, folder / tiny.WEIGHTS)
        self.model.config.save_pretrained(folder)
        torch.save(self.optimiser.state_dict(), folder / checkpoint.OPTIMISER)

    def drift(self, rows: Sequence[Row]) -> Drift:
        """Of all trained tokens of the rows, at least one."""
        found = []
        with torch.no_grad():
            for padded in passes(rows):
                is_trained = padded.mask[:, 1:] == 1
                found.append((self._logprobs(padded) - padded.logprobs[:, 1:])[is_trained].abs())
        differences = torch.cat(found)
        return Drift(len(differences), float(differences.max()), float(differences.mean()))

    def step(self, number: int, rows: Sequence[Row], seed: int) -> float:
        """One epoch over the rows of a step (from 1 on), in minibatches of whole sessions; the mean gradient norm."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate(number, self._steps)
        norms = []
        for minibatch in minibatches(rows, random.Random(f"{seed} minibatches {number}")):
            sessions = len({row.session_id for row in minibatch})
            self.optimiser.zero_grad()
            for padded in passes(minibatch):
                (self.loss(padded) / sessions).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(self._trained, GRADIENT_NORM)))
            self.optimiser.step()
        return sum(norms) / len(norms)

    def loss(self, padded: Padded) -> torch.Tensor:
        """Summed over the sessions: each token's clipped objective, by its weight."""
        is_trained = padded.mask[:, 1:] == 1
        # Where nothing is trained the log-probability of the row is no probability: a ratio of it may be anything, even infinite.
        ratio = torch.exp(torch.where(is_trained, self._logprobs(padded) - padded.logprobs[:, 1:], 0.0))
        advantages = padded.advantages[:, 1:]
        scaled = torch.where(advantages < 0, advantages * NEGATIVE, advantages)
        objective = torch.minimum(ratio * scaled, ratio.clamp(1 - CLIP, 1 + CLIP) * scaled)
        return -torch.where(is_trained, objective * padded.weights[:, 1:], 0.0).sum()

    def _logprobs(self, padded: Padded) -> torch.Tensor:
        """float32 [rows, longest - 1]: of each token but the first, given those before it."""
        logits = self.model(input_ids=padded.token_ids).logits[:, :-1]
        chosen = logits.gather(-1, padded.token_ids[:, 1:, None])[..., 0]
        result: torch.Tensor = chosen - logits.logsumexp(-1)
        return result


def rate(number: int, steps: int) -> float:
    """The learning rate of step `number` (from 1 on): up for `WARM_UP` steps, then linear down to `LAST` of it."""
    return RATE * min(number / WARM_UP, 1 - (1 - LAST) * (number - 1) / max(1, steps - 1))


def minibatches(rows: Sequence[Row], rng: random.Random) -> Iterator[list[Row]]:
    """All rows in `MINIBATCHES` parts of as many sessions, drawn; a session's rows stay together."""
    by_session: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_session[row.session_id].append(row)
    sessions = sorted(by_session)
    rng.shuffle(sessions)
    size = -(-len(sessions) // MINIBATCHES)
    for start in range(0, len(sessions), size):
        yield [row for session in sessions[start : start + size] for row in by_session[session]]


def passes(rows: Sequence[Row]) -> Iterator[Padded]:
    """All rows, those of about one length together: a model of this size gains nothing from kernels for packed ones."""
    chosen: list[Row] = []
    for row in sorted(rows, key=len):
        if chosen and len(row) * (len(chosen) + 1) > PASS_TOKENS:
            yield _padded(chosen)
            chosen = []
        chosen.append(row)
    if chosen:
        yield _padded(chosen)


def _padded(rows: Sequence[Row]) -> Padded:
    size = max(map(len, rows))

    def stacked(name: str, dtype: torch.dtype) -> torch.Tensor:
        made = torch.zeros(len(rows), size, dtype=dtype)
        for at, row in enumerate(rows):
            made[at, : len(row)] = torch.from_numpy(getattr(row, name))
        return made

    return Padded(
        stacked("token_ids", torch.int64),
        stacked("loss_mask", torch.uint8),
        stacked("logprobs", torch.float32),
        stacked("advantages", torch.float32),
        stacked("weights", torch.float32),
    )
