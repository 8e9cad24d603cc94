"""Which records of a partition have rows in the lake."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.lake.manifest import Lake, Partition
from topics import completions, dead_letters, events, fleet, trajectories, verifications, workers

OUTPUTS = f"{trajectories.TOPIC.name}."
TABLES = {
    events.TOPIC.name: ("events",),
    completions.TOPIC.name: ("completions", "disowned", "refused_requests"),
    verifications.TOPIC.name: ("verifications",),
    fleet.TOPIC.name: ("publications",),
    workers.TOPIC.name: ("heartbeats",),
    dead_letters.TOPIC.name: ("dead_letters", "dead_letter_replays"),
}
"""The tables with one row for each record of a topic that has any; a trajectories topic has those of `OF_OUTPUT`."""
OF_OUTPUT = ("trajectories", "groups")


def output_of(topic: str) -> str | None:
    """The suffix of a trajectories topic, without the namespace; None for the default one and for other topics."""
    return topic.removeprefix(OUTPUTS) if topic.startswith(OUTPUTS) else None


def written(lake: Lake, partition: Partition) -> set[tuple[int, int]]:
    """Offset and timestamp (Unix ms) of each record with rows. Raises OSError."""
    topic, number = partition
    wanted = pc.field("log_partition") == number
    if topic not in TABLES:
        output = output_of(topic)
        wanted &= pc.field("output").is_null() if output is None else pc.field("output") == output
    found: set[tuple[int, int]] = set()
    with lake.pin() as manifest:
        for table in TABLES.get(topic, OF_OUTPUT):
            for file in manifest.files.get(table, ()):
                with lake.open(table, file) as opened:
                    read = pq.read_table(opened, columns=["log_offset", "logged_at"], filters=wanted)
                times = read["logged_at"].cast(pa.int64())
                found.update(zip(read["log_offset"].to_pylist(), times.to_pylist(), strict=True))
    return found
