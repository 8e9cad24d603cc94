"""Processes of every role join and leave while sessions run, and versions meet; no session notices. Each role is a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from polar.table import SessionTable
from tests.acceptance.fleet import Fleet
from tests.acceptance.roles.conftest import start
from tests.waiting import eventually
from topics import completions, control, events, sessions, stages, tasks, workers
from topics import fleet as fleet_topic
from topics.contract import catalogue
from topics.contract.codec import encode
from topics.contract.topic import Topic
from topics.log.partition import partition_of_task
from topics.log.producer import LogProducer
from topics.stages import Ticket
from topics.types.session import Phase, SessionState, Stage, Status

pytestmark = pytest.mark.asyncio(loop_scope="session")

DECIDING = ("fanout", "coordinator", "builder")
PATIENCE_S = 90.0
LEAVE_S = 15.0
"""For a process to go whose work takes tenths of a second."""
SAMPLES = 60
UNKNOWN = "elsewhere"
"""A task that nobody knows. Records with this key lie in its partition, where a coordinator takes facts about it."""


async def leave(system: Fleet, name: str) -> None:
    """SIGTERM, and a clean end soon."""
    system.processes[name].terminate()
    async with asyncio.timeout(LEAVE_S):
        assert await system.processes[name].wait() == 0, (system.data / "logs" / f"{name}.log").read_text()


async def scraped(system: Fleet, name: str) -> dict[tuple[str, ...], float]:
    """A process's figures, each by its name and its labels' values in the labels' alphabetic order."""
    log = system.data / "logs" / f"{name}.log"
    found = await eventually(
        lambda: re.search(r"http://\S+/metrics", log.read_text() if log.exists() else ""), PATIENCE_S
    )
    assert found is not None
    url = found[0]
    with await asyncio.to_thread(urllib.request.urlopen, url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


async def has(system: Fleet, name: str, figure: tuple[str, ...], least: float) -> float:
    async def enough() -> float | None:
        found = (await scraped(system, name)).get(figure, 0.0)
        return found if found >= least else None

    return cast("float", await eventually(enough, PATIENCE_S))


async def full(system: Fleet, name: str) -> None:
    """Until each of its run slots has a session."""

    async def is_full() -> bool:
        return (await scraped(system, name)).get(("polar_worker_slots_free", "default", "run")) == 0

    await eventually(is_full, PATIENCE_S)


async def send(system: Fleet, topic: Topic, *values: bytes, key: str = UNKNOWN) -> None:
    partition = partition_of_task(UNKNOWN, 4) if topic.copartitioned else None
    producer = LogProducer(system.settings)
    await producer.start()
    try:
        for value in values:
            name = topic.full_name(system.settings.namespace)
            await producer.send_bytes(name, value, key=key.encode(), partition=partition)
    finally:
        await producer.stop()


def shell(task_id: str, samples: int, seconds: float) -> dict[str, Any]:
    """A task whose sessions end when a `Gate` is open."""
    command = f"sleep {seconds}; until [ -e open ]; do sleep 0.1; done"
    agent = {"harness": "shell", "custom_shell": {"command": command}}
    return {"task_id": task_id, "instruction": "wait", "num_samples": samples, "agent": agent}


@dataclass
class Gate:
    """While it is open, sessions of `shell` end; one that a closed gate finds stays, however long a process takes to start."""

    system: Fleet
    is_open: bool = True

    async def keep(self) -> None:
        while True:
            for sandbox in self.system.runtimes() if self.is_open else []:
                with suppress(FileNotFoundError):  # it ended
                    (sandbox / "workspace" / "open").touch()
            await asyncio.sleep(0.1)


def ended(table: SessionTable, task_id: str) -> list[SessionState]:
    return [row for row in table.sessions.get(task_id, {}).values() if row.phase is Phase.ENDED]


def newer(record: msgspec.Struct) -> bytes:
    """The record as a version writes it that knows one more field."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(encode(record)) | {"colour": "green"})


FUTURE = msgspec.msgpack.encode({"type": "from_the_future", "colour": "green"})
ELSEWHERE = f"{UNKNOWN}.0"
KNOWN: list[tuple[Topic, list[msgspec.Struct]]] = [
    (events.TOPIC, [events.Claimed("f1", ELSEWHERE, 1, Stage.RUN, "r-elsewhere", "worker-elsewhere")]),
    (control.TOPIC, [control.Revoke(ELSEWHERE, "r-elsewhere", "ended"), control.Drain("worker-elsewhere")]),
    (workers.TOPIC, [workers.Heartbeat("worker-elsewhere", "painter", "host", 1), workers.Probe("painter-1")]),
    (fleet_topic.TOPIC, [fleet_topic.FleetState(generation=0)]),
    (sessions.TOPIC, [SessionState(ELSEWHERE, UNKNOWN, 0, Phase.ENDED, 0)]),
    (completions.TOPIC, [completions.Open(ELSEWHERE, 1, "r-elsewhere")]),
    (stages.topic(Stage.RUN, catalogue.DEFAULT_POOL), [Ticket(ELSEWHERE, 0, 1, Stage.RUN, 60.0, body=b"{}")]),
    (stages.topic(Stage.EVALUATE, catalogue.DEFAULT_POOL), [Ticket(ELSEWHERE, 0, 1, Stage.EVALUATE, 60.0, body=b"{}")]),
    (stages.topic(Stage.INIT, catalogue.DEFAULT_POOL), []),
]
"""What workers, coordinators, builders and proxies read, each with records that change nothing."""


async def test_records_of_a_newer_version_are_counted_and_skipped_and_their_new_fields_too(system: Fleet) -> None:
    async with SessionTable(system.settings, ["versions"]) as table:
        await send(system, tasks.TOPIC, json.dumps(system.task("versions", 6, 6, pause_s=0.3)).encode())
        await eventually(
            lambda: any(row.phase is Phase.RUNNING for row in table.sessions.get("versions", {}).values()), PATIENCE_S
        )
        for topic, records in KNOWN:
            key = f"session:{ELSEWHERE}" if topic == sessions.TOPIC else UNKNOWN
            await send(system, topic, FUTURE, *map(newer, records), FUTURE, key=key)
        await system.start_proxy("proxy-2")  # which reads them as it starts
        for name, topics in (("coordinator-1", 1), ("builder-1", 1), ("init-1", 3), ("evaluate-1", 3), ("run-1", 3)):
            role = name.partition("-")[0]
            figure = ("polar_skipped_total", "unknown_from_the_future", role if role in DECIDING else "stages")
            assert await has(system, name, figure, 2 * topics) == 2 * topics, name
        await eventually(lambda: len(ended(table, "versions")) == 6, PATIENCE_S)
    rows = list(table.sessions["versions"].values())
    assert {(row.status, row.attempt, row.calls, row.reward) for row in rows} == {(Status.COMPLETED, 1, 6, 1.0)}
    assert await system.dead_letters() == 0


async def test_workers_and_owners_come_and_go_and_every_session_completes_in_its_first_attempt(
    system: Fleet,
) -> None:
    finished = ("polar_claims_ended_total", "finished", "run")
    gate = Gate(system)
    async with SessionTable(system.settings, ["grown"]) as table, asyncio.TaskGroup() as group:
        keeping = group.create_task(gate.keep(), name="gate")
        await send(system, tasks.TOPIC, json.dumps(shell("grown", SAMPLES, 0.3)).encode())
        await eventually(lambda: len(ended(table, "grown")) >= 5, PATIENCE_S)
        gate.is_open = False
        for name in ("run-2", "run-3", "run-4", *(f"{role}-2" for role in DECIDING)):
            await start(system, name)
        for name in ("run-2", "run-3", "run-4"):
            await full(system, name)
        assert len(ended(table, "grown")) < SAMPLES, "they came while there was work"
        gate.is_open = True
        for name in ("run-2", "run-3", "run-4"):
            await has(system, name, finished, 1)
        for name in ("coordinator-2", "builder-2"):
            await has(system, name, ("polar_partitions_owned", name.partition("-")[0]), 1)
        await has(system, "coordinator-1", ("polar_slots", "default", "run"), 16)
        await asyncio.gather(*(leave(system, name) for name in ("run-1", "run-2", "run-3")))
        await asyncio.gather(*(leave(system, f"{role}-1") for role in DECIDING))
        await eventually(lambda: len(ended(table, "grown")) == SAMPLES, PATIENCE_S)
        keeping.cancel()
    rows = list(table.sessions["grown"].values())
    assert {(row.status, row.attempt, row.spent, row.accounting.attempts_lost) for row in rows} == {
        (Status.COMPLETED, 1, 0, 0)
    }
    await eventually(lambda: not system.runtimes(), PATIENCE_S)
    assert await system.dead_letters() == 0
    await has(system, "coordinator-2", ("polar_partitions_owned", "coordinator"), 4)
    await has(system, "coordinator-2", ("polar_sessions", Phase.ENDED), SAMPLES)
    left = await scraped(system, "coordinator-2")
    assert left["polar_slots", "default", "run"] == left["polar_slots_free", "default", "run"] == 4
    assert not any(
        value for (name, *_), value in left.items() if name in ("polar_backlog", "polar_held", "polar_staged")
    )
    assert left["polar_workers_lost_total",] == 0, "those who left have said so"
