"""Makes the table again from the log, partition by partition, after `polar.sessions` was lost (`rebuilding.py` says what comes out).

Its producer has the coordinator's transactional id, which fences a running coordinator. That one then starts from the new table.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec

from consumers.coordinator.batch import Batch
from consumers.coordinator.commands import Decision
from consumers.coordinator.rebuilding import Rebuilding
from consumers.coordinator.witness import GROUP, Witness
from topics import completions, events, sessions
from topics.contract.codec import encode
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.owner import FencedProducer, OwnershipLostError, Write, read_back
from topics.log.partition import misplaced
from topics.log.refusals import refusal
from topics.sessions import Position
from topics.types.errors import NotReadyError
from topics.types.session import Phase

TRIES = 5
RETRY_S = 2.0
"""A coordinator that took the partition back waits once it has seen its table (`witness.py`)."""


class Report(msgspec.Struct, frozen=True):
    """Counts of the rebuilt partitions, their tasks and sessions."""

    partitions: int = 0
    tasks: int = 0
    ended: int = 0
    """Sessions that have their trajectory."""
    building: int = 0
    """Sessions whose trajectory the builder still owes."""
    again: int = 0
    """Other sessions: they start over, but those that were opened for a user's own agent end."""


async def rebuild_table(settings: Settings, on_partition: Callable[[int, int], None] = lambda *_: None) -> Report:
    """Rebuild every partition whose table is older than its events; `on_partition` gets the number of finished partitions and their total.

    Raises NotReadyError for a missing topic, or if others took a partition back too often.
    """
    found: Counter[str] = Counter()
    total = await admin.copartitioned_count(settings, (events.TOPIC, sessions.TOPIC, completions.TOPIC))
    try:
        for partition in range(total):
            found += await _rebuilt(settings, partition, total)
            on_partition(partition + 1, total)
    except kafka.KafkaError as error:
        raise admin.unreachable(settings, error) from None
    return Report(**found)


async def _rebuilt(settings: Settings, partition: int, partitions: int) -> Counter[str]:
    witness = Witness(settings, partition)
    if await witness.missed((await witness.newest_position()).next_offset) is None:
        return Counter()
    for tries in range(TRIES):
        fenced = FencedProducer(settings, f"{GROUP}.{partition}")
        try:
            await asyncio.sleep(RETRY_S if tries else 0)
            await fenced.start()
            return await _rebuild(settings, partition, partitions, witness, fenced)
        except OwnershipLostError as lost:
            if (refused := refusal(settings, lost.__cause__ or lost)) is not None:
                raise refused from None
            why = lost
        finally:
            await fenced.stop()
    raise NotReadyError(
        f"partition {partition} was taken back {TRIES} times ({why}); does another `polar topics rebuild-table` run? Try again"
    )


async def _rebuild(
    settings: Settings, partition: int, partitions: int, witness: Witness, fenced: FencedProducer
) -> Counter[str]:
    newest = await witness.newest_position()
    missed = await witness.missed(newest.next_offset)
    if missed is None:
        return Counter()
    # Facts that have left the log were decided, too.
    position, clock_ms = missed, newest.clock_ms
    rebuilding, found = Rebuilding(), Counter(partitions=1)
    async for record in read_back(settings, completions.TOPIC.full_name(settings.namespace), partition):
        known = completions.CODEC.known(record.value)
        if known is not None and not (
            completions.flaw(known) or misplaced(completions.task_of(known), partition, partitions)
        ):
            rebuilding.on_call_record(known)
    async for record in read_back(settings, events.TOPIC.full_name(settings.namespace), partition):
        position = max(position, record.offset + 1)
        fact = events.CODEC.known(record.value)
        if fact is not None and not (events.flaw(fact) or misplaced(events.task_of(fact), partition, partitions)):
            rebuilding.on_fact(fact, clock_ms)
    batch = Batch()
    for decision in rebuilding.decisions(clock_ms):
        found += _counted(decision)
        added = Batch.of(decision)
        if not batch.is_empty and not batch.fits(added):
            await _write(settings, partition, fenced, batch, None)
            batch = Batch()
        batch.add(added)
    # Only now: until the position is written, the table is known to be older than its events.
    await _write(settings, partition, fenced, batch, Position(position, clock_ms))
    return found


def _counted(decision: Decision) -> Counter[str]:
    """The rows of a task by the fields of a report."""
    ends = {Phase.ENDED: "ended", Phase.BUILDING: "building"}
    return Counter(tasks=len(decision.tasks)) + Counter(ends.get(each.phase, "again") for each in decision.sessions)


async def _write(
    settings: Settings, partition: int, fenced: FencedProducer, batch: Batch, position: Position | None
) -> None:
    table, calls = (topic.full_name(settings.namespace) for topic in (sessions.TOPIC, completions.TOPIC))
    for part in batch.transactions():
        writes = [Write(calls, partition, each.key.encode(), each.value) for each in part.records]
        writes += [Write(table, partition, key.encode(), value) for key, value in part.rows.items()]
        if part.is_last and position is not None:
            writes.append(Write(table, partition, sessions.key_of(position).encode(), encode(position)))
        if writes:
            await fenced.begin()
            await fenced.write(writes)
            await fenced.commit()
