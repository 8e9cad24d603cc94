"""What `polar export sft` writes, read by `datasets` and trained for one step by TRL's `SFTTrainer`.

    check_sft.py MODEL MESSAGES TOKENS PARQUET

Runs in the trainers' environment (`packages.py`); MODEL is the tiny model's folder, the others are datasets' folders. Fails with the
packages' own error or an AssertionError.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer


def step(model_dir: str, dataset: Dataset) -> tuple[float, float]:
    """The loss of one step over a whole dataset, and of the same model with the rows' labels, both before the step."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    wanted = labelled_loss(model, dataset) if "labels" in dataset.column_names else float("nan")
    before = {name: value.clone() for name, value in model.named_parameters()}
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            output_dir=folder,
            per_device_train_batch_size=len(dataset),
            max_steps=1,
            max_length=None,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            learning_rate=1e-3,
        )
        trainer = SFTTrainer(model=model, args=config, train_dataset=dataset, processing_class=tokenizer)
        trainer.train()
    assert any(not torch.equal(before[name], value) for name, value in model.named_parameters())
    return trainer.state.log_history[0]["loss"], wanted


def labelled_loss(model: Any, dataset: Dataset) -> float:
    """The mean loss of the tokens with a label, row by row and without the trainer."""
    losses = []
    for row in dataset:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
        losses += [-logprobs[at - 1, label].item() for at, label in enumerate(labels.tolist()) if label != -100]
    return float(np.mean(losses))


def main() -> None:
    model_dir, messages, tokens, parquet = sys.argv[1:]
    by_layout = {}
    for folder in (messages, tokens, parquet):
        with tempfile.TemporaryDirectory() as cache:
            loaded = load_dataset(folder, cache_dir=cache, keep_in_memory=True)
        assert sorted(loaded) == ["train", "val"], loaded
        by_layout[folder] = loaded["train"]
    talks, lines, columns = by_layout[messages], by_layout[tokens], by_layout[parquet]
    assert lines.features == columns.features
    assert list(lines) == list(columns)
    written = [json.loads(line) for line in (Path(messages) / "train.jsonl").read_text().splitlines()]
    assert [(row["messages"], row["tools"]) for row in talks] == [(row["messages"], row["tools"]) for row in written]
    assert len(lines) == len(written)
    loss, wanted = step(model_dir, lines)
    np.testing.assert_allclose(loss, wanted, rtol=1e-3)
    loss, _ = step(model_dir, talks)
    assert np.isfinite(loss)
    print(len(talks), "rows")


if __name__ == "__main__":
    main()
