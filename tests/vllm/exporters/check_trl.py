"""TRL's own types and code on the rows of `polar.trainer.exporters.trl`: a step of `GRPOTrainer`, and the queue and the packer of its
asynchronous GRPO; and its way from OpenEnv's turns to rows, on those of `polar.trainer.exporters.openenv`.

    check_trl.py GROUPS

Runs in the trainers' environment (`packages.py`); GROUPS is a msgpack array of groups. Fails with TRL's error or an AssertionError.
"""

from __future__ import annotations

import dataclasses
import queue
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from datasets import Dataset
from datasets.table import InMemoryTable
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo.async_grpo_trainer import (
    DataCollatorForRollout,
    FixedCountBatcher,
    RolloutQueueDataset,
)
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample, TurnRecord, _chain_to_sequences

from polar.trainer.exporters import openenv, trl
from polar.trainer.exporters.segments import rewarded
from polar.trainer.groups import Group

NEWEST = 6
"""The trainer's version; staleness is no subject here."""


SAMPLES = 3
"""In each group of the trained step."""
VOCABULARY = 64
"""Above the ids of all tokens, with two more for padding and the end."""


def ended(_: float) -> None:
    raise AssertionError("the queue is empty before all samples came out")


def check(group: Group, group_id: int) -> int:
    """The number of rows that TRL packed."""
    exported = trl.rollout_samples(group, group_id=group_id)
    fields = {field.name for field in dataclasses.fields(RolloutSample)}
    assert fields == set(trl.RolloutSample.__struct_fields__)
    if not exported:
        return 0
    waiting: queue.Queue[RolloutSample] = queue.Queue()
    for one in exported:
        waiting.put(RolloutSample(**msgspec.structs.asdict(one)))
    metrics: dict[str, list[float]] = defaultdict(list)
    dataset = RolloutQueueDataset(waiting, lambda: NEWEST, ended, 1.0, metrics, max_staleness=NEWEST + 1)
    rows = next(iter(FixedCountBatcher(dataset, num_processes=1, microbatch_size=len(exported))))
    batch = DataCollatorForRollout(pad_token_id=0, metrics=metrics).torch_call([rows])

    terms = zip(batch["advantages"][0].tolist(), batch["old_log_probs"][0].tolist(), strict=True)
    wanted = [
        (np.float32(one.advantage), logprob)
        for one in exported
        for logprob in one.old_log_probs[1:][one.completion_mask[1:] == 1]
    ]
    assert sorted(terms) == sorted(wanted)
    return len(exported)


def check_turns(group: Group) -> None:
    """TRL trains each rewarded token of the turns after the tokens that it was sampled after, with its logprob."""
    for trajectory, segments in rewarded(group):
        turns = [
            TurnRecord(
                turn["prompt_token_ids"],
                turn["completion_token_ids"],
                turn["per_token_logps"],
                turn["loss_mask"][len(turn["prompt_token_ids"]) :],
            )
            for turn in openenv.training_trace(trajectory)["turns"]
        ]
        rows, _ = _chain_to_sequences(turns, trajectory.session_id, 0)
        made = [one for row in rows for one in trained(row.input_ids, row.completion_mask, row.old_log_probs)]
        wanted = [
            one
            for row in (segment.expanded for segment in segments)
            for one in trained(row.token_ids.tolist(), row.loss_mask.tolist(), row.logprobs.tolist())
        ]
        assert sorted(made) == sorted(wanted)


def trained(ids: list[int], mask: list[int], logprobs: list[float]) -> list[tuple[list[int], float]]:
    """Each trained token with all before it, and its logprob."""
    return [(ids[: at + 1], logprobs[at]) for at, is_trained in enumerate(mask) if is_trained]


def check_step(groups: Sequence[Group]) -> None:
    """`GRPOTrainer` trains a random model for one step on these groups, and logs the rewards and lengths that they have."""
    exported = trl.rollouts(groups, num_generations=SAMPLES, branches="longest")

    def reward(reward: list[float | None], **_: Any) -> list[float | None]:
        return reward

    words = {str(number): number for number in range(VOCABULARY - 2)} | {
        "<pad>": VOCABULARY - 2,
        "<eos>": VOCABULARY - 1,
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="0")), pad_token="<pad>", eos_token="<eos>"
    )
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=SAMPLES * len(groups),
            num_generations=SAMPLES,
            max_steps=1,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            # With a fingerprint it isn't hashed: `datasets` can't do that with the pinned pyarrow.
            train_dataset=Dataset(InMemoryTable.from_pydict({"prompt": ["1"] * len(groups)}), fingerprint="prompts"),
            processing_class=tokenizer,
            rollout_func=lambda prompts, trainer: exported,
        )
        trainer.train()
    logged = trainer.state.log_history[0]
    known = [one for one in exported["reward"] if one is not None]
    np.testing.assert_allclose(logged["reward"], np.mean(known), rtol=1e-5)
    np.testing.assert_allclose(logged["completions/mean_length"], np.mean([sum(one) for one in exported["env_mask"]]))
    assert np.isfinite(logged["loss"])


def main() -> None:
    groups = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=list[Group])
    check_step([group for group in groups if len(group.trajectories) == SAMPLES][:2])
    for group in groups:
        check_turns(group)
    print(sum(check(group, number) for number, group in enumerate(groups)), "rows")


if __name__ == "__main__":
    main()
