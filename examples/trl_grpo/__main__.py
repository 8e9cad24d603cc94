"""TRL's GRPOTrainer on Polar: a small model learns to repair files with three tools, in real sessions of a real agent.

    python -m examples.trl_grpo --model DIR --served DIR --engine URL --data DIR --out DIR

Needs a running `polar up` and a vLLM server (README.md). Killed at any moment and started again, it goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from examples.grpo_tiny.requests import EVALUATOR, body_of
from examples.tiny_model.tasks import HELD_OUT, TRAINED, draw
from polar.trainer.trl import last_checkpoint, rollout_func
from polar.trainer.vllm_weights import served_folder

DEVICE = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}  # on a GPU: {"bf16": True}
PRECISION = "float32"  # on a GPU: "bfloat16", as the server's --dtype
GROUP = 8
"""Sessions of a prompt."""
HELD_OUT_GROUP = 4
UPDATES = 2
"""Number of updates that train one batch of rollouts."""


def main() -> None:
    """Train on --batches of rollouts."""
    options = arguments()

    def task(prompt: str) -> dict[str, Any]:
        """A prompt names its task; the harness, the files and the evaluator are Polar's. See docs/task.md."""
        kind, _, _ = prompt.partition(" ")
        drawn = draw(random.Random(f"{options.seed} {prompt}"), HELD_OUT if kind == "held-out" else TRAINED)
        return body_of(drawn, options.evaluator)

    config = GRPOConfig(
        output_dir=str(options.out),
        **DEVICE,
        num_generations=GROUP,
        # A batch of rollouts is trained in two updates, each on half of its sessions.
        per_device_train_batch_size=options.prompts * GROUP // UPDATES,
        steps_per_generation=UPDATES,
        gradient_accumulation_steps=1,
        max_steps=options.batches * UPDATES,
        learning_rate=options.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=5,
        adam_beta2=0.95,
        scale_rewards="none",
        # The default leaves out long sessions.
        vllm_importance_sampling_mode="token_truncate",
        shuffle_dataset=False,
        # After a whole batch, so that a resumed training trains each session once.
        save_steps=UPDATES,
        save_total_limit=2,
        logging_steps=UPDATES,
        log_completions=True,
        num_completions_to_print=1,
        report_to="none",
        disable_tqdm=True,
        seed=options.seed,
        eval_strategy="steps" if options.evaluate_every else "no",
        eval_steps=options.evaluate_every * UPDATES or None,
        eval_on_start=bool(options.evaluate_every),
        per_device_eval_batch_size=options.held_out,
        num_generations_eval=HELD_OUT_GROUP,
    )
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=PRECISION)
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        part.requires_grad_(False)
    push = served_folder(options.served, [options.engine])
    # A session is seldom more than one trace here: TRL takes one row of it, the longest.
    rollouts = rollout_func(task, push, run=options.run, data=options.data, branches="longest")
    trainer = GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=rollouts.reward,
        rollout_func=rollouts,
        train_dataset=prompts("train", options.batches * options.prompts),
        eval_dataset=prompts("held-out", options.held_out // HELD_OUT_GROUP),
    )
    with rollouts.of(trainer):
        trainer.train(resume_from_checkpoint=last_checkpoint(options.out))


def prompts(kind: str, number: int) -> Dataset:
    """So many prompts of a kind."""
    return Dataset.from_list([{"prompt": f"{kind} {at}"} for at in range(number)])


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="examples.trl_grpo", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", required=True, metavar="DIR", help="data folder of a running polar up")
    parser.add_argument("--model", required=True, metavar="DIR", help="the model to begin with")
    parser.add_argument("--served", type=Path, required=True, metavar="DIR", help="the folder that vLLM serves: a copy")
    parser.add_argument("--engine", required=True, metavar="URL", help="vLLM's address, without /v1")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="TRL's checkpoints and logs")
    parser.add_argument("--run", default="trl-grpo", metavar="NAME", help="names the training (default trl-grpo)")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument(
        "--batches", type=int, default=45, metavar="N", help=f"of rollouts, {UPDATES} updates each (default 45)"
    )
    parser.add_argument("--prompts", type=int, default=12, metavar="N", help=f"a batch, of {GROUP} sessions each")
    parser.add_argument("--learning-rate", type=float, default=2e-4, metavar="RATE", help="default 2e-4")
    parser.add_argument("--held-out", type=int, default=256, metavar="N", help="sessions of an evaluation")
    parser.add_argument("--evaluate-every", type=int, default=0, metavar="N", help="batches; 0: never (default)")
    parser.add_argument("--evaluator", default=EVALUATOR, metavar="MODULE:CLASS", help="what judges a session")
    return parser.parse_args()


if __name__ == "__main__":
    main()
