"""Which configurations of TRL are refused, and which checkpoint counts; tests/vllm/test_trl_grpo.py uses TRL's own GRPOConfig."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polar.trainer.trl_settings import (
    WANTED_OF_GRPO,
    check,
    check_async,
    check_saves,
    checkpoint_version,
    last_checkpoint,
    prompts_of,
)
from topics.types.errors import InputError


@dataclass(frozen=True)
class Arguments:
    """GRPOConfig's defaults, as far as they are checked."""

    use_vllm: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    mask_truncated_completions: bool = False
    restore_callback_states_from_checkpoint: bool = False
    save_strategy: str = "steps"
    gradient_accumulation_steps: int = 2
    steps_per_generation: int = 2
    num_iterations: int = 1
    save_steps: int = 500
    weight_sync_steps: int = 1


@dataclass(frozen=True)
class Trainer:
    """GRPOTrainer's attributes, as far as they are checked."""

    args: Arguments = field(default_factory=Arguments)
    tools: list[str] | None = None
    environment_factories: dict[None, object] | None = None


def test_the_defaults_are_accepted() -> None:
    check(Trainer())
    check(Trainer(Arguments(temperature=0.7)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_vllm", True),
        ("top_p", 0.9),
        ("top_k", 50),
        ("min_p", 0.1),
        ("repetition_penalty", 1.1),
        ("mask_truncated_completions", True),
        ("restore_callback_states_from_checkpoint", True),
        ("temperature", 0.0),
    ],
)
def test_a_setting_that_would_train_on_other_tokens_is_refused(name: str, value: Any) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(InputError, match=rf"GRPOConfig\.{name}: must be"):
        check(Trainer(replace(Arguments(), **changed)))
    assert name in (*WANTED_OF_GRPO, "temperature")


@pytest.mark.parametrize(("name", "value"), [("top_p", 0.9), ("min_p", 0.1), ("temperature", 0.0)])
def test_the_asynchronous_trainer_s_sampling_is_refused_too(name: str, value: Any) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(InputError, match=rf"AsyncGRPOConfig\.{name}: must be"):
        check_async(replace(Arguments(), **changed))


@pytest.mark.parametrize(
    ("strategy", "every", "syncs_every", "is_accepted"),
    [
        ("steps", 500, 1, True),
        ("steps", 4, 2, True),
        ("no", 3, 2, True),
        ("steps", 3, 2, False),
        ("epoch", 4, 2, False),
    ],
)
def test_a_checkpoint_whose_weights_have_no_version_is_refused(
    strategy: str, every: int, syncs_every: int, is_accepted: bool
) -> None:
    arguments = Arguments(save_strategy=strategy, save_steps=every, weight_sync_steps=syncs_every)
    if is_accepted:
        check_async(arguments)
    else:
        with pytest.raises(InputError, match=r"AsyncGRPOConfig\.save_steps: save_strategy must be steps"):
            check_async(arguments)


@pytest.mark.parametrize(("step", "syncs_every", "version"), [(4, 1, 9), (4, 2, 9), (5, 2, 10)])
def test_a_checkpoint_at_the_end_has_a_version_of_its_own(step: int, syncs_every: int, version: int) -> None:
    """The version 9 is that of the last sync. TRL also saves a training's last step, which needn't be a multiple of anything."""
    trainer = SimpleNamespace(
        model_version=9, state=SimpleNamespace(global_step=step), args=Arguments(weight_sync_steps=syncs_every)
    )
    assert checkpoint_version(trainer) == version


class WithoutColumn:
    """As a `datasets.Dataset` without the column answers."""

    def __getitem__(self, name: str) -> list[str]:
        raise ValueError(f"Column '{name}' doesn't exist.")


@pytest.mark.parametrize("dataset", [None, {}, {"text": ["a"]}, {"prompt": []}, iter(["a"]), WithoutColumn()])
def test_a_dataset_without_prompts_in_order_is_refused(dataset: object) -> None:
    assert prompts_of({"prompt": ["a", "b"]}) == ["a", "b"]
    with pytest.raises(InputError, match="train_dataset: must have a column `prompt` and rows"):
        prompts_of(dataset)


def test_tools_are_the_harness_s() -> None:
    for trainer in (Trainer(tools=["search"]), Trainer(environment_factories={None: object})):
        with pytest.raises(InputError, match="tools: leave tools and environments out"):
            check(trainer)


@pytest.mark.parametrize(
    ("accumulated", "per_generation", "iterations", "strategy", "every", "is_accepted"),
    [
        (2, 2, 1, "steps", 1, True),  # the default: one update per batch of rollouts
        (2, 2, 1, "epoch", 500, True),
        (4, 2, 1, "steps", 3, True),
        (1, 2, 1, "steps", 1, False),  # two updates
        (1, 2, 1, "steps", 4, True),
        (2, 2, 3, "steps", 3, True),
        (2, 2, 3, "steps", 4, False),
        (1, 2, 1, "epoch", 2, False),
        (1, 2, 1, "no", 1, True),
    ],
)
def test_a_checkpoint_between_two_updates_on_the_same_rollouts_is_refused(
    accumulated: int, per_generation: int, iterations: int, strategy: str, every: int, is_accepted: bool
) -> None:
    arguments = Arguments(
        gradient_accumulation_steps=accumulated,
        steps_per_generation=per_generation,
        num_iterations=iterations,
        save_strategy=strategy,
    )
    if is_accepted:
        check_saves(arguments, every)
    else:
        with pytest.raises(InputError, match=r"GRPOConfig\.save_steps: checkpoints must be a multiple of \d optimizer"):
            check_saves(arguments, every)


def test_the_last_checkpoint_is_the_newest_that_is_whole(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    for number, state in ((9, json.dumps({})), (10, json.dumps({})), (11, '{"global_step": 1'), (12, None)):
        (tmp_path / f"checkpoint-{number}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{number}" / "trainer_state.json").write_text(state)
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


@pytest.mark.skipif(importlib.util.find_spec("trl") is not None, reason="TRL is installed")
def test_without_trl_the_import_names_the_package() -> None:
    with pytest.raises(ImportError, match=r"polar\.trainer\.trl needs trl 1\.16\.0: pip install trl==1\.16\.0"):
        import polar.trainer.trl  # noqa: F401
