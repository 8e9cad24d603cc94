"""Kafka dies under requests of NeMo Gym, hangs, and comes back: a wait goes on, and a new request is told at once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from polar.embedded import Broker
from polar.nemo_gym import rollouts as waiting
from polar.nemo_gym.rollouts import Rollouts
from tests.polar.coordinator import Coordinator, task
from topics import tasks
from topics.contract import catalogue
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.follow import Follower, Since
from topics.log.producer import LogProducer
from topics.types.errors import NotReadyError

pytestmark = pytest.mark.hard

DEADLINE_S = 300.0


def due(seconds: float = DEADLINE_S) -> float:
    return asyncio.get_running_loop().time() + seconds


async def submitted(settings: Settings, count: int) -> None:
    """Return once the log has this number of tasks."""
    seen: set[bytes | None] = set()
    have_come = asyncio.Event()

    def on_task(_: bytes, record: kafka.Record) -> None:
        seen.add(record.key)
        if len(seen) == count:
            have_come.set()

    follower = Follower(settings, tasks.TOPIC, on_task, since=Since.BEGINNING)
    await follower.start()
    await have_come.wait()
    await follower.stop()


async def test_an_outage_costs_time_or_a_word(tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "CANCEL_S", 1.0)
    broker = Broker(tmp_path, announce=print)
    with broker:
        settings = Settings(kafka=broker.bootstrap, namespace=namespace, data=tmp_path, replication=1, min_insync=1)
        await admin.apply(settings, catalogue.FIXED, embedded=True)
        producer = LogProducer(settings)
        await producer.start()
        coordinator = Coordinator(settings, producer)
        early, hung = task("r1-0-0", 1), task("r1-1-0", 1)
        async with Rollouts(settings) as rollouts, asyncio.timeout(DEADLINE_S):
            for request in (early, hung):
                await coordinator.show(request)
            patient = asyncio.create_task(rollouts.run(early, due()))
            late = asyncio.create_task(rollouts.run(hung, due(5.0)))
            await submitted(settings, 2)
            await coordinator.show(task("r1-9-0", 1))  # acknowledged after these tasks
            os.kill(broker.pid, signal.SIGSTOP)
            with pytest.raises(
                NotReadyError, match="r1-1-0 didn't end by the deadline, and goes on: Kafka didn't answer"
            ):
                await late
            os.kill(broker.pid, signal.SIGCONT)
            broker.kill()
            with pytest.raises(NotReadyError):
                await rollouts.run(task("r1-2-0", 1), due())
            with pytest.raises(NotReadyError):
                async with Rollouts(settings):
                    pass
            assert not patient.done()
            assert not rollouts.has_failed
            await asyncio.to_thread(broker.start)
            await coordinator.build("r1-0-0.0", reward=0.5)
            await coordinator.end(early, 0)
            assert (await patient).reward == 0.5
        await producer.stop()
