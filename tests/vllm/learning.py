"""What `examples/grpo_tiny`'s learner makes of rows whose answer is known, as JSON: run by test_learner.py in vLLM's environment.

    python -m tests.vllm.learning MODEL_DIR SCRATCH_DIR

The rows' tokens are drawn; their logprobs are the model's own, so that engine and trainer are one.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from examples.grpo_tiny import checkpoint
from examples.grpo_tiny.learner import CLIP, NEGATIVE, Learner, minibatches, passes
from examples.grpo_tiny.trainer import LARGEST
from polar.trainer import Row

LENGTH, PROMPT = 48, 16
STEPS = 45
ADVANTAGES = (0.5, -0.5, 0.0)


def rows_of(learner: Learner, seed: int) -> list[Row]:
    """A session for each advantage: a prompt, then trained tokens."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(LENGTH) >= PROMPT).astype(np.uint8)
    made = []
    for at, advantage in enumerate(ADVANTAGES):
        ids = rng.integers(0, 700, LENGTH, dtype=np.int32)
        made.append(
            Row(
                session_id=f"t.{at}",
                trace=0,
                token_ids=ids,
                loss_mask=mask,
                logprobs=(logprobs(learner, ids) * mask).astype(np.float32),
                advantages=np.full(LENGTH, advantage, np.float32),
                weights=(mask / (LENGTH - PROMPT)).astype(np.float32),
                policy_versions=np.zeros(LENGTH, np.int64),
                publications=np.zeros(LENGTH, np.int64),
            )
        )
    return made


def logprobs(learner: Learner, ids: np.ndarray) -> np.ndarray:
    """float32 [n], the first 0; by a softmax of its own."""
    with torch.no_grad():
        all_logprobs = torch.log_softmax(
            learner.model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[0], -1
        )
    return np.array([0.0, *(float(all_logprobs[at - 1, ids[at]]) for at in range(1, len(ids)))], np.float32)


def mean_logprobs(learner: Learner, rows: Sequence[Row]) -> list[float]:
    return [float(logprobs(learner, row.token_ids)[PROMPT:].mean()) for row in rows]


def by_hand(learner: Learner, rows: Sequence[Row]) -> float:
    """PPO's clipped objective (arXiv 1707.06347, equation 7), token by token."""
    total = 0.0
    for row in rows:
        now = logprobs(learner, row.token_ids)
        for at in range(PROMPT, LENGTH):
            ratio = math.exp(float(now[at] - row.logprobs[at]))
            advantage = float(row.advantages[at]) * (NEGATIVE if row.advantages[at] < 0 else 1)
            clipped = min(max(ratio, 1 - CLIP), 1 + CLIP)
            total -= min(ratio * advantage, clipped * advantage) * float(row.weights[at])
    return total


def main(folder: Path, scratch: Path) -> None:
    torch.manual_seed(0)
    learner = Learner(folder, STEPS)
    rows = rows_of(learner, 1)
    rng = np.random.default_rng(2)
    stale = [replace(row, logprobs=row.logprobs + rng.normal(0, 0.5, LENGTH).astype(np.float32)) for row in rows]
    found = {
        "bound": LARGEST,
        "own": learner.drift(rows).largest,
        "shifted": learner.drift([replace(row, logprobs=np.roll(row.logprobs, 1)) for row in rows]).largest,
        "loss": sum(float(learner.loss(padded).detach()) for padded in passes(stale)),
        "loss_by_hand": by_hand(learner, stale),
        "before": mean_logprobs(learner, rows),
        "parts": [[row.session_id for row in part] for part in minibatches([*rows, *rows], random.Random(1))],
    }
    learner.step(1, rows, seed=1)
    found |= {"stale": learner.drift(rows).largest}
    made = checkpoint.begin(scratch, 1)
    learner.save(made)
    restored = Learner(made, STEPS)
    (made / checkpoint.OPTIMISER).unlink()
    forgetful = Learner(made, STEPS)
    for each in (learner, restored, forgetful):
        for number in range(2, 6):
            each.step(number, rows, seed=1)
    found |= {
        "after": mean_logprobs(learner, rows),
        "restored": difference(learner, restored),
        "forgetful": difference(learner, forgetful),
    }
    print(json.dumps(found))


def difference(one: Learner, other: Learner) -> float:
    """The largest, of all weights."""
    return max(
        float((left - right).abs().max())
        for left, right in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
