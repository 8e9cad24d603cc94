"""How many records a role has yet to read: the ends of its partitions, asked when somebody wants to know, less where it has come to.

The offsets that a group commits don't say it: the builder commits where its oldest open session begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from topics.environment.settings import Settings
from topics.log import kafka

STOP_S = 1.0


class Lag:
    """The lag of one role of this process."""

    def __init__(self, settings: Settings, positions: Callable[[], Mapping[kafka.TopicPartition, int]]) -> None:
        """`positions`: the next offset that the role takes from each partition that it reads now."""
        self._settings = settings
        self._positions = positions

    async def measure(self) -> int:
        """Records, with the markers of transactions among them; 0 without partitions. Raises KafkaError; the caller sets a deadline."""
        positions = dict(self._positions())
        if not positions:
            return 0
        async with kafka.started(kafka.consumer(self._settings, committed=False), STOP_S) as asker:
            ends = await asker.end_offsets(positions)
        return sum(max(0, ends[source] - position) for source, position in positions.items())
