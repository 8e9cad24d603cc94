"""Checks of TRL's configuration for `polar.trainer.trl` and `polar.trainer.trl_async`, and its checkpoints: which is the last whole one.

Imports nothing of TRL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topics.types.errors import InputError

UNCONSIDERED = "TRL's log-probabilities don't consider it"
WANTED = {
    "top_p": (1.0, UNCONSIDERED),
    "top_k": (0, UNCONSIDERED),
    "min_p": (None, UNCONSIDERED),
    "repetition_penalty": (1.0, UNCONSIDERED),
    "restore_callback_states_from_checkpoint": (False, "it would replace this callback by another object"),
}
"""Values of fields of GRPOConfig and AsyncGRPOConfig, with the reason."""
WANTED_OF_GRPO = WANTED | {
    "use_vllm": (False, "weights reach the engine by `push`"),
    "mask_truncated_completions": (False, "a session's last token is seldom the end token"),
}


def check(trainer: Any) -> None:
    """Raise InputError for a configuration with which TRL would compute other log-probabilities than the engine, or train other tokens."""
    _check(trainer.args, "GRPOConfig", WANTED_OF_GRPO)
    if trainer.tools or trainer.environment_factories:
        raise InputError("tools", trainer.tools, "leave tools and environments out: the harness has its own")


def check_async(args: Any) -> None:
    """Raise InputError for an AsyncGRPOConfig as `check` does, and for checkpoints between two weight syncs.

    Such a checkpoint's weights have no version.
    """
    _check(args, "AsyncGRPOConfig", WANTED)
    if args.save_strategy == "no":
        return
    if args.save_strategy != "steps" or args.save_steps < 1 or args.save_steps % args.weight_sync_steps:
        reason = f"save_strategy must be steps, with a multiple of weight_sync_steps, which is {args.weight_sync_steps}"
        raise InputError("AsyncGRPOConfig.save_steps", args.save_steps, reason)


def checkpoint_version(trainer: Any) -> int:
    """The version of an AsyncGRPOTrainer's weights: that of the last sync, or after further updates a new one.

    TRL saves the last step of a training, whatever its number. A training that goes on from there must not publish two weights under one
    version.
    """
    is_synced = trainer.state.global_step % trainer.args.weight_sync_steps == 0
    return int(trainer.model_version) + (not is_synced)


def prompts_of(dataset: Any) -> Sequence[Any]:
    """The column `prompt` of a dataset, in order. Raises InputError for a dataset without one, such as a stream, or without rows."""
    try:
        column: Sequence[Any] = dataset["prompt"]
        if len(column):
            return column
    except (KeyError, NotImplementedError, TypeError, ValueError):  # a ValueError is of `datasets`
        pass
    raise InputError("train_dataset", type(dataset).__name__, "must have a column `prompt` and rows, and be no stream")


def _check(args: Any, config: str, wanted: Mapping[str, tuple[object, str]]) -> None:
    for name, (value, reason) in wanted.items():
        if getattr(args, name) != value:
            raise InputError(f"{config}.{name}", getattr(args, name), f"must be {value}: {reason}")
    if not args.temperature > 0:
        raise InputError(f"{config}.temperature", args.temperature, "must be above 0: a greedy choice has no ratio")


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
