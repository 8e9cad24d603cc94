"""Whether a partition's table holds all decisions: once a minute its position is also committed as a group's offset (protocol 4).

A table whose position is behind that offset was deleted, or restored from an older state. Deciding the same facts anew would give
finished sessions a second trajectory.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from topics import events, sessions
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.owner import STOP_DEADLINE_S, FencedProducer, OwnershipLostError, position_within_log, read_back
from topics.sessions import Position

GROUP = "coordinator"
COMMIT_S = 60.0
"""Between two commits; they cost a transaction two more requests."""
LOOK_S = 5.0
"""Between two looks for a table that was made again."""

log = structlog.get_logger()


class TableLostError(OwnershipLostError):
    """The table lacks decisions that were committed."""


class Witness:
    """The second record of a partition's position."""

    def __init__(self, settings: Settings, partition: int) -> None:
        self._settings = settings
        self._partition = partition
        self._table = sessions.TOPIC.full_name(settings.namespace)
        self._source = kafka.TopicPartition(events.TOPIC.full_name(settings.namespace), partition)
        self._committed_at = -COMMIT_S

    async def commit(self, fenced: FencedProducer, position: int) -> None:
        """Add the position to the open transaction, if it is time."""
        if time.monotonic() - self._committed_at >= COMMIT_S:
            self._committed_at = time.monotonic()
            await fenced.commit_offset(f"{self._settings.namespace}.{GROUP}", self._source, position)

    async def missed(self, position: int) -> int | None:
        """The offset that a whole table would have reached; None if a table with this position lacks nothing."""
        async with kafka.started(kafka.consumer(self._settings, group=GROUP), STOP_DEADLINE_S) as consumer:
            witnessed = await consumer.committed(self._source) or 0
            end = (await consumer.end_offsets([self._source]))[self._source]
        return witnessed if position < witnessed <= end else None

    async def newest_position(self, start: int = 0) -> Position:
        """The last position in the table from an offset on, or from the table's beginning where it was made again since."""
        begin = await position_within_log(self._settings, kafka.TopicPartition(self._table, self._partition), start)
        found = Position(0, 0)
        async for record in read_back(self._settings, self._table, self._partition, begin):
            row = sessions.CODEC.known(record.value)
            found = row if isinstance(row, Position) else found
        return found

    async def require_whole(self, position: int, table_end: int) -> None:
        """Return if the table, read up to offset `table_end`, holds all decisions.

        Otherwise wait, since a new owner would fence the command that makes the table again, and raise TableLostError once that is done.
        """
        missed = await self.missed(position)
        if missed is None:
            return
        found = position
        while found < missed:
            log.error(
                f"{self._table}[{self._partition}] is older than its events: it would go on at {position}, but those before {missed} were "
                "decided; `polar topics rebuild-table` makes it again from the log",
                action="coordinator.table_lost",
            )
            await asyncio.sleep(LOOK_S)
            found = (await self.newest_position(table_end)).next_offset
        raise TableLostError(f"{self._table}[{self._partition}] was made again")
