"""Reads the results of ended sessions from a trajectories topic, each encoded once, and keeps the newest ones in memory.

A task's trajectories lie in one partition, from around the time when its sessions ended. So a read costs a part of one partition, whether
this process or another one received the task.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing

import msgspec

from polar.rest.result_mapping import session_result
from topics import trajectories
from topics.contract.topic import HOUR_MS, MIB
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.owner import STOP_DEADLINE_S, OwnershipLostError, read_back
from topics.log.partition import partition_of_task
from topics.types.errors import NotReadyError
from topics.types.session import SessionState
from topics.types.trajectory import Trajectory

KEPT_BYTES = 256 * MIB
"""Encoded results in memory: clients of a running task poll every few seconds."""
GONE = 100_000
"""Sessions remembered whose trajectory retention removed, about 10 MiB: without that, each poll of their task reads a partition."""
READS = 4
"""Concurrent reads; each has connections of its own."""
READ_S = 60.0
BEFORE_MS = HOUR_MS
"""A row says that its session is being built once the coordinator has read so, perhaps after the trajectory."""


Key = tuple[str, int]
"""A session's id and the time of its end: an id is free again after its task's rows have expired."""


class ResultLog:
    """Results of sessions, as JSON."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: OrderedDict[Key, bytes] = OrderedDict()
        self._bytes = 0
        self._gone: OrderedDict[Key, None] = OrderedDict()
        """Ended sessions without a trajectory on the log. It was written before they ended, so it never comes."""
        self._reads = asyncio.Semaphore(READS)

    async def results(self, output: str | None, rows: Sequence[SessionState], built_ms: int) -> dict[str, bytes]:
        """Encoded `SessionResult`s of ended sessions of one task, by session id. A trajectory that retention removed is left out.

        `output`: the suffix of the task's trajectories topic. `built_ms`: `SessionTable.built_ms`.
        Raises NotReadyError if Kafka doesn't answer.
        """
        found: dict[str, bytes] = {}
        if self._missing(rows):
            try:
                # The wait for other reads counts: clients poll again, whether this request has ended or not.
                async with asyncio.timeout(READ_S), self._reads:
                    # Another request may have read them meanwhile.
                    if missing := self._missing(rows):
                        found = await self._read(output, missing, built_ms)
                        self._remember_gone(_key(row) for row in missing.values() if row.session_id not in found)
            except (kafka.KafkaError, OwnershipLostError, TimeoutError) as error:
                raise NotReadyError(f"Kafka at {self._settings.bootstrap} doesn't answer: {error!r}") from None
        for row in rows:
            if (kept := self._kept.get(_key(row))) is not None:
                self._kept.move_to_end(_key(row))
                found[row.session_id] = kept
        self._keep({_key(row): found[row.session_id] for row in rows if row.session_id in found})
        return found

    def _missing(self, rows: Sequence[SessionState]) -> dict[str, SessionState]:
        known = (self._kept, self._gone)
        return {row.session_id: row for row in rows if all(_key(row) not in keys for keys in known)}

    def _remember_gone(self, keys: Iterable[Key]) -> None:
        self._gone.update(dict.fromkeys(keys))
        while len(self._gone) > GONE:
            self._gone.popitem(last=False)

    def _keep(self, results: Mapping[Key, bytes]) -> None:
        for key, encoded in results.items():
            if key not in self._kept:
                self._kept[key] = encoded
                self._bytes += len(encoded)
        while self._bytes > KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= len(dropped)

    async def _read(self, output: str | None, wanted: Mapping[str, SessionState], built_ms: int) -> dict[str, bytes]:
        name = trajectories.topic(output).full_name(self._settings.namespace)
        count = await admin.partition_count(self._settings, name)
        task_id = next(iter(wanted.values())).task_id
        source = kafka.TopicPartition(name, partition_of_task(task_id, count))
        start = await self._first_since(source, built_ms - BEFORE_MS)
        found = await self._scan(source, start, wanted)
        if start is not None and len(found) < len(wanted):
            found |= await self._scan(source, None, wanted)
        return found

    async def _first_since(self, source: kafka.TopicPartition, instant_ms: int) -> int | None:
        """Offset of the first record at or after a time; None if there is none."""
        reader = kafka.consumer(self._settings)
        async with kafka.started(reader, STOP_DEADLINE_S):
            first = (await reader.offsets_for_times({source: max(0, instant_ms)}))[source]
        return None if first is None else first.offset

    async def _scan(
        self, source: kafka.TopicPartition, start: int | None, wanted: Mapping[str, SessionState]
    ) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        async with aclosing(read_back(self._settings, source.topic, source.partition, start)) as records:
            async for record in records:
                row = wanted.get((record.key or b"").decode(errors="replace"))
                if row is None or row.session_id in found:
                    continue
                if encoded := await asyncio.to_thread(_encoded, record.value or b"", row):
                    found[row.session_id] = encoded
                if len(found) == len(wanted):
                    break
        return found


def _key(row: SessionState) -> Key:
    return row.session_id, row.since


def _encoded(value: bytes, row: SessionState) -> bytes | None:
    """The result in a record; None if it holds no trajectory of a builder's first making."""
    trajectory = trajectories.CODEC.known(value)
    if not isinstance(trajectory, Trajectory) or trajectory.rebuilt_with is not None:
        return None
    return msgspec.json.encode(session_result(trajectory, row))
