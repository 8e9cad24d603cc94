"""A trainer's first loop: whole groups from Kafka, GRPO advantages, a checkpoint after each step.

    python examples/trainer_loop.py [--data .polar] [--groups 4] [--state FILE] [--timeout 10]

It reads what the tasks of a running `polar up` brought out, says what a step would train, and ends when nothing new has come for
--timeout seconds. Run again with the same --state it goes on behind the last step; your own step goes where `train` stands.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from polar import InputError, NotReadyError
from polar.trainer import Group, Row, TrajectoryConsumer, grpo, pack
from polar.trainer.advantages import advantages

MAX_TOKENS = 1 << 17
"""Of one forward pass."""


def main() -> None:
    """Read, train, keep the position; until nothing new comes."""
    options = arguments()
    with TrajectoryConsumer(options.data, timeout_s=options.timeout) as consumer:
        if options.state is not None and options.state.exists():
            consumer.load_state_dict(json.loads(options.state.read_text()))
        groups = iter(consumer.groups())
        step = 0
        while batch := list(islice(groups, options.groups)):
            step += 1
            train(step, batch)
            if options.state is not None:
                save(options.state, consumer.state_dict())
    print(f"steps: {step}; nothing new for {options.timeout:g} s")


def train(step: int, batch: Sequence[Group]) -> None:
    """Where the gradient step goes; here it says what it would be made of."""
    print(f"step {step}")
    rows: list[Row] = []
    for group in batch:
        weights = advantages(group.rewards)
        print(f"  {group.task_id}" + ("" if any(weights) else ": no spread in its rewards, dropped"))
        if not any(weights):
            continue
        of_group = grpo(group)
        rows += of_group
        for trajectory, advantage in zip(group.trajectories, weights, strict=True):
            if advantage is None:
                continue
            own = [row for row in of_group if row.session_id == trajectory.session_id]
            trained = sum(int(row.loss_mask.sum()) for row in own)
            shape = "+".join(str(len(row)) for row in own)
            print(f"    {trajectory.sample_index:2} {trajectory.status:9} reward {trajectory.reward:5.2f}"
                  f"  advantage {advantage:+.2f}  {shape} tokens, {trained} trained")  # fmt: skip
    # A forward pass each: batch.token_ids, batch.cu_seqlens, and the loss of batch.logprobs, batch.advantages and batch.weights.
    batches = pack(rows, MAX_TOKENS)
    print(f"  {sum(int(batch.loss_mask.sum()) for batch in batches)} tokens trained")


def save(file: Path, state: dict[str, Any]) -> None:
    """Whole or not at all. A real trainer puts the state into the checkpoint of its weights: the two belong together."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(state))
    temporary.replace(file)


def arguments() -> argparse.Namespace:
    """What is said on the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", metavar="DIR", help="data folder of a running polar up (default: as polar finds it)")
    parser.add_argument("--groups", type=int, default=4, metavar="N", help="groups a step (default 4)")
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="checkpoint: read at the start, written after each step"
    )
    parser.add_argument(
        "--timeout", type=float, default=10, metavar="S", help="end when nothing new came for S seconds"
    )
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except (InputError, NotReadyError) as error:
        print(f"trainer_loop: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 3)
