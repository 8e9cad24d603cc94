"""One of several processes that train a random model with `polar.trainer.trl`, in a real process group of gloo.

    trl_processes.py FOLDER FAILURE…

One training after another, each with a FAILURE: what fails in the main process (`connect`, `resume`, `task`, `push`, `unpicklable`), or
`nothing`. torch's variables have the rank.
Prints a line of JSON for each: the error's type and text, or the sessions that this process trained and a digest of its weights.
`Sessions` stands for a Polar system unless FAILURE is `connect`, for which no Kafka is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from datasets import Dataset
from datasets.table import InMemoryTable
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from polar.trainer import trl
from polar.trainer.training_run import TrainingRun
from tests.polar.trainer.sessions import Sessions
from topics.environment.settings import Settings
from topics.types.errors import InputError

SAMPLES = 6
"""One group, which two processes divide."""
VOCABULARY = 64
OUTCOME = "outcome "
"""Begins the lines that aren't TRL's."""


class UnpicklableError(Exception):
    """An error with a constructor that its arguments don't fit."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def outcome(folder: Path, failure: str) -> list[Any]:
    seen: list[str] = []

    def task(prompt: str) -> dict[str, Any]:
        if failure == "task":
            raise InputError("prompt", prompt, "names no task")
        return {"instruction": prompt, "agent": {"harness": "pi"}}

    def push(tensors: Mapping[str, Any], version: int) -> None:
        if failure == "push":
            raise InputError("tensors", sorted(tensors)[:1], "aren't served")
        if failure == "unpicklable":
            raise UnpicklableError("version", str(version))

    class Reward:
        __name__ = "reward"

        def __call__(self, **fields: Any) -> list[float | None]:
            seen.extend(fields["session_id"])
            return rollouts.reward(**fields)

    vars(trl)["TrainingRun"] = TrainingRun if failure == "connect" else lambda *_: Sessions()
    rollouts = trl.rollout_func(task, push, run="r1", settings=Settings(kafka="127.0.0.1:9", data=folder))
    trainer = made(folder / f"out-{os.environ['RANK']}", rollouts, Reward())
    try:
        with rollouts.of(trainer):
            if failure == "resume":
                state = SimpleNamespace(global_step=1, save_steps=1, stateful_callbacks={})
                rollouts.on_train_begin(trainer.args, state, None)
            trainer.train()
    except Exception as error:
        return [type(error).__name__, str(error)]
    weights = b"".join(tensor.detach().numpy().tobytes() for tensor in trainer.model.parameters())
    return [seen, hashlib.sha256(weights).hexdigest()]


def made(out: Path, rollouts: Any, reward: Any) -> GRPOTrainer:
    words = {str(number): number for number in range(VOCABULARY - 2)} | {"<pad>": 62, "<eos>": 63}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="0")), pad_token="<pad>", eos_token="<eos>"
    )
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return GRPOTrainer(
        model=Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, **sizes, **heads)),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(out),
            per_device_train_batch_size=SAMPLES // 2,
            num_generations=SAMPLES,
            max_steps=1,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        # With a fingerprint it isn't hashed: `datasets` can't do that with the pinned pyarrow.
        train_dataset=Dataset(InMemoryTable.from_pydict({"prompt": ["1"]}), fingerprint="prompts"),
        processing_class=tokenizer,
        rollout_func=rollouts,
    )


if __name__ == "__main__":
    for failure in sys.argv[2:]:
        print(OUTCOME + json.dumps(outcome(Path(sys.argv[1]), failure)))
