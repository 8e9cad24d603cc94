"""Prints what a program that shows curves has, as its own library reads it. Runs beside the libraries of `sinks.txt`.

`python read_back.py tensorboard FOLDER`, `mlflow EXPERIMENT RUN`, `wandb FOLDER RUN`: JSON, for each curve its steps, times (Unix ms) and
values.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

Found = dict[str, list[tuple[int, int, float]]]


def tensorboard(folder: str) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    shown = EventAccumulator(folder, size_guidance={SCALARS: 0})
    shown.Reload()
    return {
        name: [(one.step, round(one.wall_time * 1000), one.value) for one in shown.Scalars(name)]
        for name in shown.Tags()["scalars"]
    }


def mlflow(experiment: str, run: str) -> Found:
    from mlflow import MlflowClient

    client = MlflowClient()
    found = client.get_experiment_by_name(experiment)
    [one] = client.search_runs([found.experiment_id])
    assert one.info.run_name == run
    return {
        name: [(each.step, each.timestamp, each.value) for each in client.get_metric_history(one.info.run_id, name)]
        for name in one.data.metrics
    }


def wandb(folder: str, run: str) -> Found:
    """W&B reads its files only to send them, so this reads them as `polar export metrics` does. Rows have numbers of their own."""
    from polar.export.metrics.sinks.weights_and_biases import rows

    found: Found = defaultdict(list)
    files = sorted(Path(folder).glob(f"wandb/offline-run-*-{run}/run-{run}.wandb"))
    made = [row for file in files for row in rows(file.read_bytes())]
    assert [row["_step"] for row in made] == list(range(len(made)))
    for row in made:
        for name, value in row.items():
            axis, _, curve = name.partition("/")
            if curve not in ("", "step", "at_ms"):
                found[name].append((row[f"{axis}/step"], row[f"{axis}/at_ms"], value))
    return found


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    print(json.dumps({"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}[program](*arguments)))  # type: ignore[operator]
