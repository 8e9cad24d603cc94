"""How many records a role has yet to read: the ends of its partitions, asked when somebody wants to know, less where it has come to.

The offsets that a group commits don't say it: the builder commits where its oldest open session begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from topics.environment.settings import Settings
from topics.log import kafka

STOP_S = 1.0


async def ends(
    settings: Settings, partitions: Iterable[kafka.TopicPartition], *, committed: bool
) -> dict[kafka.TopicPartition, int]:
    """The offset after the newest record of each partition, or `committed`, after what readers of committed records may read.

    Asked on a connection of its own: on a reader's it would wait behind the reader's fetch. Raises KafkaError.
    """
    async with kafka.started(kafka.consumer(settings, committed=committed), STOP_S) as asker:
        return await asker.end_offsets(list(partitions))


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
        found = await ends(self._settings, positions, committed=False)
        return sum(max(0, found[source] - position) for source, position in positions.items())
