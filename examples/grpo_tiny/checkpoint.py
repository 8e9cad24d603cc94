"""A checkpoint: weights, optimiser, and what was read of the log, of one moment; in a folder that is there whole or not at all.

Invariant: weights and position belong together. Going on from a checkpoint trains on each session that it hasn't seen, and on none
twice, wherever the process was killed.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

KEPT = 2
STATE = "state.json"
OPTIMISER = "optimiser.pt"
CHECKED = "checked.json"
"""Beside the checkpoints: what came of comparing the newest with what the engine sampled after the last reload."""


@dataclass(frozen=True)
class Step:
    """What a step was: figures for the report."""

    number: int
    """From 1 on; its samples are of policy version `number - 1`."""
    rewards: dict[str, float | None]
    """By session id."""
    malformed: int
    calls: int
    rows: int
    row_tokens: int
    trained_tokens: int
    compared_tokens: int
    largest_difference: float
    """Of log-probabilities, engine against trainer, over `compared_tokens`."""
    mean_difference: float
    gradient_norm: float
    """Before it is clipped, the mean over minibatches; 0 where no group has unlike rewards."""
    seconds: dict[str, float]
    """Where the time went, by part."""
    ended_at: float
    """Unix seconds."""


@dataclass(frozen=True)
class State:
    """All of a checkpoint that JSON can hold."""

    steps: list[Step] = field(default_factory=list)
    consumer: dict[str, Any] | None = None
    """`TrajectoryConsumer.state_dict()`; None: nothing was read."""

    @property
    def version(self) -> int:
        """The policy version of the weights: how many steps they have had."""
        return len(self.steps)


def newest(folder: Path) -> Path | None:
    """The last checkpoint in a folder of them."""
    return max(folder.glob("step-*[0-9]"), default=None)


def read(checkpoint: Path) -> State:
    """What it says."""
    found = json.loads((checkpoint / STATE).read_text())
    return State([Step(**step) for step in found["steps"]], found["consumer"])


def begin(folder: Path, version: int) -> Path:
    """A folder to write a checkpoint into; `finish` makes it count."""
    made = folder / f"step-{version:04}.tmp"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    return made


def finish(made: Path, state: State) -> Path:
    """Write the state, put the checkpoint in its place, and let old ones go."""
    (made / STATE).write_text(json.dumps(asdict(state)))
    whole = made.rename(made.with_suffix(""))
    for old in sorted(whole.parent.glob("step-*[0-9]"))[:-KEPT]:
        shutil.rmtree(old)
    return whole
