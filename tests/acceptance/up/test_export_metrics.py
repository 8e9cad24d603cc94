"""`polar export metrics` on a running system: which points are final is decided with Kafka's word."""

from __future__ import annotations

import time

from analytics.queries import query
from polar.export.metrics.completeness import complete_until, counted
from tests.acceptance.up.running import Up
from tests.waiting import until
from topics.environment import settings

BEHIND_MS = 30_000
SHOWN_S = 60.0


def test_a_lake_whose_writer_has_read_everything_is_complete_up_to_now(up: Up) -> None:
    """A session ended here, so partitions end with markers of transactions, which no row of the lake is about."""
    assert up.submit("curves", "true", "--wait", "--run", "curves").returncode == 0
    found = settings.load(up.data)
    begun_ms = time.time() * 1000

    def is_complete() -> bool:
        with query.connect(found) as reader:
            topics = {topic for topic, _ in counted(reader.manifest)}
            assert {"completions", "events", "fleet", "trajectories"} <= topics
            return complete_until(found, reader.manifest) > begun_ms - BEHIND_MS

    assert until(is_complete, SHOWN_S, every_s=1.0)
