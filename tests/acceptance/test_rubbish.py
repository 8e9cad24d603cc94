"""Rubbish that a plain Kafka client writes to every topic while a system works, and before it starts again: it costs no session.

What a role with the right to write the topic could forge (a `Build` of a real session, a pause of the fleet) isn't rubbish
(docs/security.md).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polar.table import SessionTable
from tests.acceptance import chaos
from tests.acceptance.fleet import Fleet, fleet
from topics import completions, events, sessions, tasks, trajectories
from topics.contract import catalogue
from topics.contract.topic import MIB, Topic
from topics.log import admin, kafka
from topics.log.owner import read_back
from topics.log.partition import partition_of_task
from topics.types.trajectory import Trajectory

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
ROLES = ("fanout", "coordinator", "builder", "init", "run", "evaluate", "analytics", "webhooks")
SEED = int(os.environ.get("POLAR_RUBBISH_SEED", "1"))
ROUNDS = 3
"""Times that rubbish is written to every topic."""
TURNS = 8
ENDED_S = 240.0
IDS = ("session_id", "task_id", "claim_id", "worker_id", "call_id", "fact_id", "init_claim_id", "run_claim_id")
LARGE = 5 * MIB
ALL_TOPICS = (*catalogue.FIXED, *catalogue.of_pool(catalogue.DEFAULT_POOL))


class Litterer:
    """Makes rubbish, of nothing and of records that are on the topic."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._names = 0

    def of_nothing(self) -> Iterator[bytes | None]:
        """Values that were never records."""
        pick = self.random
        yield None
        yield b""
        yield pick.randbytes(pick.randrange(1, 300))
        yield b"[" * 100_000
        yield b'{"task_id": "half'
        yield msgspec.json.encode({"task_id": ["a"], "num_samples": -1, "agent": {"harness": 5}})
        yield msgspec.msgpack.encode(pick.choice([1, "text", [1, 2], {"type": 3}, {}, None]))
        yield msgspec.msgpack.encode({"type": "of_a_later_version", "session_id": "t.0", "more": {"deep": [1]}})
        yield pick.randbytes(LARGE)

    def of_records(self, topic: Topic, known: list[bytes]) -> Iterator[bytes]:
        """Records of strangers' sessions: whole, with a field of a later version, and with one that is wrong."""
        decode = msgspec.json.decode if topic.name == tasks.TOPIC.name else msgspec.msgpack.decode
        # A record without an id is about nobody's session: a position of the table, an order to the fleet.
        records = [record for value in known if not (record := decode(value)).keys().isdisjoint(IDS)]
        for found in self.random.sample(records, min(len(records), 6)):
            record = self._renamed(found)
            yield self._encoded(topic, record)
            yield self._encoded(topic, record | {"of_a_later_version": {"a": 1}})
            wrong = dict(record)
            wrong[self.random.choice(sorted(wrong))] = self.random.choice(
                [None, -1, "stranger" * 40, [[]], {"a": 1}, 2**63]
            )
            yield self._encoded(topic, wrong)

    def key(self) -> bytes | None:
        pick = self.random
        return pick.choice(
            [None, b"", b"\xff\xfe", pick.randbytes(200), b"offset", b"session:nobody.0", b"task:nobody"]
        )

    @staticmethod
    def _encoded(topic: Topic, record: dict[str, Any]) -> bytes:
        return msgspec.json.encode(record) if topic.name == tasks.TOPIC.name else msgspec.msgpack.encode(record)

    def _renamed(self, record: dict[str, Any]) -> dict[str, Any]:
        """As another namespace's: no id is one of this system."""
        self._names += 1
        strange = {
            name: f"stranger{self._names}.0" if name == "session_id" else f"stranger{self._names}" for name in IDS
        }
        return {name: strange[name] if name in strange and value else value for name, value in record.items()}


async def litter(system: Fleet, litterer: Litterer, known: Mapping[str, list[bytes]]) -> int:
    """A round over all topics, made of `known` records by topic; how many records the brokers took."""
    taken = 0
    async with kafka.started(
        kafka.producer(system.settings, max_bytes=8 * MIB, enable_idempotence=False), 10
    ) as producer:
        for topic in ALL_TOPICS:
            name = topic.full_name(system.settings.namespace)
            values = list(litterer.of_nothing())
            values += litterer.of_records(topic, known[topic.name])
            for value in values:
                partition = litterer.random.randrange(topic.partition_count(True))
                try:
                    await (await producer.send(name, value, key=litterer.key(), partition=partition))
                except (kafka.KafkaError, AssertionError):
                    continue  # too large for this topic, or a compacted topic's record without a key
                taken += 1
            if topic in (events.TOPIC, sessions.TOPIC, completions.TOPIC):
                # Real records, where their task has no partition.
                for value in known[topic.name][:40]:
                    record = msgspec.msgpack.decode(value)
                    named = str(record.get("task_id") or record.get("session_id", "").rpartition(".")[0])
                    wrong = (partition_of_task(named, topic.partition_count(True)) + 1) % topic.partition_count(True)
                    await (await producer.send(name, value, key=b"copied", partition=wrong))
                    taken += 1
    return taken


async def _values(system: Fleet, topic: Topic) -> list[bytes]:
    found: list[bytes] = []
    for partition in range(topic.partition_count(True)):
        records = read_back(system.settings, topic.full_name(system.settings.namespace), partition)
        found += [record.value async for record in records if record.value is not None]
    return found


async def test_rubbish_on_every_topic_costs_no_session_and_stops_no_process(tmp_path: Path) -> None:
    names = [f"{role}-1" for role in ROLES]
    litterer = Litterer(SEED)
    ended: list[str] = []
    async with fleet(tmp_path / "data", names) as system:

        async def work(*task_ids: str) -> None:
            bodies = [system.task(task_id, TURNS, chaos.SAMPLES, pause_s=0.4) for task_id in task_ids]
            code, _, error = await system.polar("submit", "-", stdin="\n".join(map(json.dumps, bodies)))
            assert code == 0, error

        async def all_end(*task_ids: str) -> None:
            async with SessionTable(system.settings) as table:
                assert await table.until(lambda: all(map(table.is_finished, task_ids)), ENDED_S)
            ended.extend(task_ids)

        await work("first")
        await all_end("first")
        known = {topic.name: await _values(system, topic) for topic in ALL_TOPICS}
        await work("during1", "during2")
        taken = sum([await litter(system, litterer, known) for _ in range(ROUNDS)])
        await all_end("during1", "during2")
        stopped = {
            name: process.returncode for name, process in system.processes.items() if process.returncode is not None
        }
        assert stopped == {}
        for name in [*names, "proxy"]:
            await system.kill(name)
        taken += await litter(system, litterer, known)
        for name in ["proxy", *names]:
            await system.start(name)
        await work("after")
        await all_end("after")
        for command in (
            ("status",),
            ("status", "after"),
            ("trajectories", "--format", "jsonl"),
            ("dead-letters", "list"),
            ("show", "after.0"),
            ("topics", "list"),
            ("sql", "select count(*) from sessions"),
        ):
            code, out, error = await system.polar(*command)
            assert code == 0, (command, error)
            assert out, command
        outputs = await _trajectories(system)
        assert sorted(outputs) == sorted(f"{name}.{sample}" for name in ended for sample in range(chaos.SAMPLES))
        listed = await admin.listing(system.settings)
        letters = next(each.records for each in listed if each.name.endswith("dead-letters"))
        print(f"\n  {taken} records of rubbish, {letters} dead letters")
        assert letters > taken / 10


async def _trajectories(system: Fleet) -> list[str]:
    """Session ids of what the builder wrote."""
    outputs = [trajectories.CODEC.known(value) for value in await _values(system, trajectories.TOPIC)]
    found = [output.session_id for output in outputs if isinstance(output, Trajectory)]
    return [name for name in found if not name.startswith("stranger")]
