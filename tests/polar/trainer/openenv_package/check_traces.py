"""OpenEnv's own `TrainingTrace` takes what `exporters.openenv` makes of random trajectories.

    check_traces.py TRAJECTORIES

Runs with the packages of requirements.txt; TRAJECTORIES is a msgpack array. Prints the number of turns.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from openenv.core.harness import TrainingTrace

from polar.trainer.exporters.openenv import training_trace
from topics.types.trajectory import Trajectory


def main() -> None:
    turns = 0
    for trajectory in msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=list[Trajectory]):
        exported = training_trace(trajectory)
        trace = TrainingTrace.model_validate(exported)
        assert [turn.model_dump(exclude={"request", "response"}) for turn in trace.turns] == exported["turns"]
        turns += len(trace.turns)
    print(turns, "turns")


if __name__ == "__main__":
    main()
