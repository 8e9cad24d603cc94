"""A trainer that is killed: python -m tests.acceptance.trainee DATA CHECKPOINT trajectories|groups HOW_MANY.

Its checkpoint holds what it has trained on (for a real one: weights) and the consumer's state, after every third item. Ends after
HOW_MANY items.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from polar.trainer import TrajectoryConsumer

STEP_S = 0.02
EVERY = 3


def main(data: str, checkpoint: str, items: str, how_many: str) -> None:
    file = Path(checkpoint)
    with TrajectoryConsumer(data) as consumer:
        trained: list[str] = []
        if file.exists():
            saved = json.loads(file.read_text())
            trained = saved["trained"]
            consumer.load_state_dict(saved["state"])
        for name in names(consumer, items):
            trained.append(name)
            time.sleep(STEP_S)
            if len(trained) % EVERY == 0 or len(trained) == int(how_many):
                temporary = file.with_suffix(".tmp")
                temporary.write_text(json.dumps({"trained": trained, "state": consumer.state_dict()}))
                temporary.replace(file)
            if len(trained) == int(how_many):
                return


def names(consumer: TrajectoryConsumer, items: str) -> Iterator[str]:
    """An item as one word: a session id, or a group's session ids."""
    if items == "trajectories":
        yield from (one.session_id for one in consumer)
    else:
        yield from (" ".join(one.session_id for one in group.trajectories) for group in consumer.groups())


if __name__ == "__main__":
    main(*sys.argv[1:])
