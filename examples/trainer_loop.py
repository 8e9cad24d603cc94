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

import numpy as np

from polar.trainer import Group, TrajectoryConsumer
from polar.types.errors import InputError, NotReady

EPSILON = 1e-6


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
    tokens = 0
    for group in batch:
        weights = advantages(group.rewards)
        print(f"  {group.task_id}" + ("" if any(weights) else ": no spread in its rewards, dropped"))
        for trajectory, advantage in zip(group.trajectories, weights, strict=True):
            if advantage is None:
                continue
            traces = trajectory.expanded()
            # A row of a batch: trace.token_ids, trace.loss_mask, trace.logprobs, and the advantage of its rollout.
            trained = sum(int(trace.loss_mask.sum()) for trace in traces)
            shape = "+".join(str(len(trace.token_ids)) for trace in traces)
            print(f"    {trajectory.sample_index:2} {trajectory.status:9} reward {trajectory.reward:5.2f}"
                  f"  advantage {advantage:+.2f}  {shape} tokens, {trained} trained")  # fmt: skip
            tokens += trained
    print(f"  {tokens} tokens trained")


def advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """GRPO: each reward against its group, in standard deviations. None: out of the batch.

    A missing reward is out of the baseline, too: no evaluator gave one. Where all are equal nothing can be learned.
    """
    known = [reward for reward in rewards if reward is not None]
    mean, deviation = (np.mean(known), np.std(known)) if known else (0, 0)
    if deviation == 0:
        return [None] * len(rewards)
    return [None if reward is None else float((reward - mean) / (deviation + EPSILON)) for reward in rewards]


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
    except (InputError, NotReady) as error:
        print(f"trainer_loop: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 3)
