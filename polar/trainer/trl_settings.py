"""Checks of TRL's configuration for `polar.trainer.trl`, and its checkpoints: which is the last whole one. Imports nothing of TRL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from topics.types.errors import InputError

UNCONSIDERED = "TRL's log-probabilities don't consider it"
WANTED = {
    "use_vllm": (False, "weights reach the engine by `push`"),
    "top_p": (1.0, UNCONSIDERED),
    "top_k": (0, UNCONSIDERED),
    "min_p": (None, UNCONSIDERED),
    "repetition_penalty": (1.0, UNCONSIDERED),
    "mask_truncated_completions": (False, "a session's last token is seldom the end token"),
    "restore_callback_states_from_checkpoint": (False, "it would replace this callback by another object"),
}
"""Values of GRPOConfig's fields, with the reason."""


def check(trainer: Any) -> None:
    """Raise InputError for a configuration with which TRL would compute other log-probabilities than the engine, or train other tokens."""
    args = trainer.args
    for name, (value, reason) in WANTED.items():
        if getattr(args, name) != value:
            raise InputError(f"GRPOConfig.{name}", getattr(args, name), f"must be {value}: {reason}")
    if not args.temperature > 0:
        raise InputError("GRPOConfig.temperature", args.temperature, "must be above 0: a greedy choice has no ratio")
    if trainer.tools or trainer.environment_factories:
        raise InputError("tools", trainer.tools, "leave tools and environments out: the harness has its own")


def check_saves(args: Any, save_steps: int) -> None:
    """Raise InputError if a checkpoint may lie between two optimizer steps of one batch of rollouts: it couldn't be resumed."""
    batch = args.steps_per_generation * args.num_iterations
    accumulated = args.gradient_accumulation_steps
    if args.save_strategy == "no" or accumulated % batch == 0:
        return
    if args.save_strategy != "steps" or save_steps * accumulated % batch:
        reason = f"checkpoints must be a multiple of {batch / accumulated:g} optimizer steps apart, which train on the same rollouts"
        raise InputError("GRPOConfig.save_steps", save_steps, reason)


def last_checkpoint(folder: str | Path) -> str | None:
    """The newest whole checkpoint in TRL's `output_dir`; None if there is none. `trainer_state.json`, written last, makes it whole."""
    numbered = {int(one.name.removeprefix("checkpoint-")): one for one in Path(folder).glob("checkpoint-*[0-9]")}
    for _, checkpoint in sorted(numbered.items(), reverse=True):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text())
        except (OSError, ValueError):
            continue
        return str(checkpoint)
    return None
