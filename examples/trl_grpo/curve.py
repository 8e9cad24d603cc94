"""TRL's log of a training as a reward curve.

    python -m examples.trl_grpo.curve trl/checkpoint-90/trainer_state.json curve.svg

Prints the evaluations and the largest `sampling_logp_difference` of all batches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from examples.grpo_tiny.picture import Curve, smoothed, svg


def curve(log: Sequence[Mapping[str, float]]) -> tuple[Curve, str]:
    """The curve, and a text with one line per evaluation and the largest difference.

    `log` is TRL's `log_history`, with evaluations before the first update and after the last.
    Raises ValueError if there are fewer than two evaluations.
    """
    rewards = [entry["reward"] for entry in log if "reward" in entry]
    held_out = {int(entry["step"]): entry["eval_reward"] for entry in log if "eval_reward" in entry}
    if len(held_out) < 2:
        raise ValueError(f"the log has {len(held_out)} evaluations, and a curve needs two: train with --evaluate-every")
    difference = max(entry["sampling/sampling_logp_difference/max"] for entry in log if "reward" in entry)
    lines = [f"{step} updates: held out {reward:.3f}" for step, reward in sorted(held_out.items())]
    lines.append(f"largest sampling_logp_difference of {len(rewards)} batches: {difference:.1e}")
    return Curve("TRL", smoothed(rewards), rewards, held_out[min(held_out)], held_out[max(held_out)]), "\n".join(lines)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m examples.trl_grpo.curve trainer_state.json FILE.svg")
    source, target = map(Path, sys.argv[1:])
    try:
        drawn, told = curve(json.loads(source.read_bytes())["log_history"])
    except (OSError, ValueError) as error:
        sys.exit(f"curve: {error}")
    target.write_text(svg([drawn]))
    print(told)


if __name__ == "__main__":
    main()
