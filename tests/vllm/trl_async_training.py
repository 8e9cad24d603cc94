"""TRL's AsyncGRPOTrainer on Polar's sessions, without a GPU: a program for vLLM's environment that trains the tiny model.

    python -m tests.vllm.trl_async_training --model DIR --served DIR --engine URL …

It resumes from its last checkpoint. It prints a line for each row that TRL takes from the queue, in the order in which TRL trains them.

Two pieces of TRL need CUDA and are replaced: `attention` stands for the FlashAttention 3 kernel, and the device's peak FLOPS, which TRL's
log divides by, are unknown. Everything else is TRL's own.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer
from trl.experimental.async_grpo.packing import TREE_ATTENTION

from examples.grpo_tiny.requests import body_of
from examples.tiny_model.tasks import draw
from examples.trl_grpo.__main__ import DEVICE, prompts
from polar.trainer.trl_async import AsyncRollouts, last_checkpoint
from polar.trainer.vllm_weights import served_folder

GROUP, MICRO_BATCH, ACCUMULATED = 4, 3, 2
"""Sessions of a group, rows of a micro-batch, and micro-batches of an update, which so ends in the middle of a group."""
ROW = "row "
"""Begins the line of a row: its group's number and a digest of its tokens."""
LEARNING_RATE = 2e-4


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    tree_kv_index: torch.Tensor,
    tree_cu_seqlens_q: torch.Tensor,
    tree_cu_seqlens_k: torch.Tensor,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """TRL's `tree_attention` by PyTorch's attention, one segment after another: a segment sees its path, which ends with itself.

    Queries, keys and values are [1, heads, n, d], the result [1, n, heads, d].
    """
    segments = zip(*(bounds.tolist() for bounds in (tree_cu_seqlens_q, tree_cu_seqlens_k)), strict=True)
    begins, *ends = segments
    found = []
    for end in ends:
        queries, path = query[:, :, begins[0] : end[0]], tree_kv_index[begins[1] : end[1]]
        keys, values = key[:, :, path], value[:, :, path]
        before = len(path) - queries.shape[2]
        mask = torch.ones(queries.shape[2], len(path), dtype=torch.bool).tril(before)
        found.append(
            torch.nn.functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, scale=scaling, enable_gqa=True
            )
        )
        begins = end
    return torch.cat(found, 2).transpose(1, 2), None


class Told:
    """The worker's queue, which tells each row."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def get(self, timeout: float) -> Any:
        row = self._rows.get(timeout)
        print(f"{ROW}{row.group_id} {digest(row.input_ids)}", flush=True)
        return row

    def qsize(self) -> int:
        return int(self._rows.qsize())


def digest(token_ids: Any) -> str:
    """Of a row's tokens, an array of int64."""
    return hashlib.sha256(token_ids.tobytes()).hexdigest()[:16]


def main() -> None:
    options = arguments()

    def task(prompt: str) -> dict[str, Any]:
        return body_of(draw(random.Random(prompt)), options.evaluator)

    vars(async_grpo_trainer)["get_peak_flops_per_device"] = lambda *_: None
    config = AsyncGRPOConfig(
        output_dir=str(options.out),
        **DEVICE,
        num_generations=GROUP,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        token_budget=0,
        max_inflight_tasks=2 * GROUP,
        max_staleness=options.staleness,
        max_steps=options.steps,
        learning_rate=LEARNING_RATE,
        save_steps=1,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    push = served_folder(options.served, options.engine)
    source: Any = AsyncRollouts(task, push, run=options.run, data=options.data)
    source.rollout_buffer = Told(source.rollout_buffer)
    trainer = AsyncGRPOTrainer(
        str(options.model),
        args=config,
        train_dataset=prompts("train", 64),
        rollout_worker=source,
        weight_transfer=source,
    )
    # TRL's constructor has registered its own.
    AttentionInterface.register(TREE_ATTENTION, attention)
    source.attach(trainer)
    trainer.train(resume_from_checkpoint=last_checkpoint(options.out))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    for name in ("model", "served", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--engine", action="append", required=True)
    for name in ("run", "evaluator"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("steps", "staleness"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
