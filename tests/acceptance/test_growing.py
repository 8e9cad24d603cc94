"""Processes of every role join and leave while sessions run, and no session notices. Each role is a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from polar.client import SessionTable
from polar.types.session import Phase, SessionState, Status
from tests.acceptance.fleet import Fleet, fleet
from topics import tasks
from topics.producer import LogProducer

pytestmark = pytest.mark.asyncio(loop_scope="module")

DECIDING = ("fanout", "coordinator", "builder")
PATIENCE_S = 90.0
LEAVE_S = 15.0
"""For a process to go whose work takes tenths of a second."""
SAMPLES = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path_factory.mktemp("growing"), []) as made:
        for role in (*DECIDING, "init", "evaluate", "run"):
            await start(made, f"{role}-1")
        yield made


async def start(system: Fleet, name: str) -> None:
    role = name.partition("-")[0]
    options = ("--concurrency", "4", "--grace", "60", "--metrics-port", "0", "--data", str(system.data))
    await system.spawn(name, "polar.cli", "worker", role, *options)


async def leave(system: Fleet, name: str) -> None:
    """SIGTERM, and a clean end soon."""
    system.processes[name].terminate()
    async with asyncio.timeout(LEAVE_S):
        assert await system.processes[name].wait() == 0, (system.data / "logs" / f"{name}.log").read_text()


async def eventually(look: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while not (found := look()):
            await asyncio.sleep(0.02)
    return found


async def scraped(system: Fleet, name: str) -> dict[tuple[str, ...], float]:
    """A process's figures, each by its name and its labels' values in the labels' alphabetic order."""
    log = system.data / "logs" / f"{name}.log"
    url = (await eventually(lambda: re.search(r"http://\S+/metrics", log.read_text() if log.exists() else "")))[0]
    with await asyncio.to_thread(urllib.request.urlopen, url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


async def has(system: Fleet, name: str, figure: tuple[str, ...], least: float) -> float:
    async with asyncio.timeout(PATIENCE_S):
        while (found := (await scraped(system, name)).get(figure, 0.0)) < least:
            await asyncio.sleep(0.05)
    return found


async def submit(system: Fleet, task: dict[str, Any]) -> None:
    producer = LogProducer(system.settings)
    await producer.start()
    await producer.send_bytes(tasks.TOPIC.full_name(system.settings.namespace), json.dumps(task).encode())
    await producer.stop()


def shell(task_id: str, samples: int, seconds: float) -> dict[str, Any]:
    agent = {"harness": "shell", "custom_shell": {"command": f"sleep {seconds}"}}
    return {"task_id": task_id, "instruction": "wait", "num_samples": samples, "agent": agent}


def ended(table: SessionTable, task_id: str) -> list[SessionState]:
    return [row for row in table.sessions.get(task_id, {}).values() if row.phase is Phase.ENDED]


async def test_workers_and_owners_come_and_go_and_every_session_completes_in_its_first_attempt(
    system: Fleet,
) -> None:
    finished = ("polar_claims_ended_total", "finished", "run")
    async with SessionTable(system.settings, ["grown"]) as table:
        await submit(system, shell("grown", SAMPLES, 0.3))
        await eventually(lambda: len(ended(table, "grown")) >= 5)
        for name in ("run-2", "run-3", "run-4", *(f"{role}-2" for role in DECIDING)):
            await start(system, name)
        for name in ("run-2", "run-3", "run-4"):
            await has(system, name, finished, 1)
        for name in ("coordinator-2", "builder-2"):
            await has(system, name, ("polar_partitions_owned", name.partition("-")[0]), 1)
        assert len(ended(table, "grown")) < SAMPLES, "they came while there was work"
        await asyncio.gather(*(leave(system, name) for name in ("run-1", "run-2", "run-3")))
        await asyncio.gather(*(leave(system, f"{role}-1") for role in DECIDING))
        await eventually(lambda: len(ended(table, "grown")) == SAMPLES)
    rows = list(table.sessions["grown"].values())
    assert {(row.status, row.attempt, row.spent, row.accounting.attempts_lost) for row in rows} == {
        (Status.COMPLETED, 1, 0, 0)
    }
    await eventually(lambda: not system.runtimes())
    assert await system.dead_letters() == 0
