"""A reader of the lake as a process: asks until a file is there.

    python lake_reader.py DATA STOP_FILE

Prints a line of JSON for each round: when it was asked (Unix s) and what the answers were. Any error ends it with a traceback.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from analytics.queries import query
from topics.environment import settings

COUNTS = "SELECT (SELECT count(*) FROM lake.events), (SELECT count(*) FROM calls), (SELECT count(*) FROM trajectories)"
ANSWERS = "SELECT harness, status, count(*), avg(reward) FROM sessions GROUP BY ALL ORDER BY ALL"
PAUSE_S = 1.0

os.nice(19)  # several readers that ask all the time must not be what the writer waits for
found = settings.load(Path(sys.argv[1]))
while not Path(sys.argv[2]).exists():
    asked_at = time.time()
    with query.connect(found) as reader:
        (counts,) = reader.ask(COUNTS).rows()
        assert list(reader.ask(ANSWERS).rows())
    print(json.dumps({"asked_at": asked_at, "counts": counts}), flush=True)
    time.sleep(PAUSE_S)
