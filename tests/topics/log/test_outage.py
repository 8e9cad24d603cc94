"""The broker dies and comes back: what waits gets through, what was given up or stopped doesn't hang, nothing is handed on twice."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from polar.embedded import Broker
from tests.waiting import eventually
from topics import control, workers
from topics.control import Drain
from topics.environment.settings import Settings
from topics.log import admin, heartbeat, kafka
from topics.log.follow import Follower, Since
from topics.log.heartbeat import HeartbeatSender
from topics.log.producer import LogProducer, UnacknowledgedError

pytestmark = pytest.mark.hard


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Broker:
    return Broker(tmp_path_factory.mktemp("dying"), announce=print)


async def test_a_broker_that_is_silent_for_too_long_is_asked_again(
    broker: Broker, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.log.silent_broker.SILENCE_S", 1.0)
    with broker:
        settings = Settings(kafka=broker.bootstrap, namespace=namespace)
        await admin.apply(settings, [control.TOPIC], embedded=True)
        follower = Follower(settings, control.TOPIC, lambda *_: None, since=Since.BEGINNING)
        await follower.start()
        os.kill(broker.pid, signal.SIGSTOP)
        asked = asyncio.create_task(follower.caught_up(60))
        done, _ = await asyncio.wait({asked}, timeout=3)
        os.kill(broker.pid, signal.SIGCONT)
        assert not done
        await asked
        await follower.stop()


async def test_an_outage_costs_time_only(broker: Broker, namespace: str) -> None:
    with broker:
        settings = Settings(kafka=broker.bootstrap, namespace=namespace)
        await admin.apply(settings, [control.TOPIC, workers.TOPIC], embedded=True)
        seen: list[str] = []
        follower = Follower(settings, control.TOPIC, lambda drain, _: seen.append(drain.worker_id), since=Since.END)
        await follower.start()
        patient, hasty, doomed, late = (LogProducer(settings) for _ in range(4))
        for producer in (patient, hasty, doomed):
            await producer.start()
            await producer.send(control.TOPIC, Drain("before"), key="w")
        heart, leaving = (
            HeartbeatSender(settings, lambda: HeartbeatSender.heartbeat("w1", "worker")) for _ in range(2)
        )
        heart.start()
        leaving.start()
        await heart.first_beat(10)
        await leaving.first_beat(10)

        clients = await _clients_at_work(settings)

        broker.kill()
        waiting = asyncio.create_task(patient.send(control.TOPIC, Drain("patient"), key="w"))
        stopped = asyncio.create_task(doomed.send(control.TOPIC, Drain("doomed"), key="w"))
        starting = asyncio.create_task(late.start(deadline_s=60))
        with within(4):
            with pytest.raises(UnacknowledgedError, match="no acknowledgement within 1 s"):
                await hasty.send(control.TOPIC, Drain("hasty"), key="w", deadline_s=1)
            # By now the line is replaced, and its successor finds no broker.
            with pytest.raises(UnacknowledgedError, match="not sent"):
                await hasty.send(control.TOPIC, Drain("hasty too"), key="w", deadline_s=1)
        with within(4):
            await doomed.stop(deadline_s=0.5)
        with pytest.raises(UnacknowledgedError, match="stopped before the acknowledgement"):
            await stopped
        with within(2 * heartbeat.STOP_S + 1):
            leaving.stop()
        for client in clients:
            with within(3):
                await kafka.stop(client, 0.5)
        with pytest.raises(TimeoutError):
            await follower.caught_up(0.5)
        await eventually(lambda: not heart.connected, 2 * heartbeat.CONNECTED_S)
        assert not waiting.done()
        assert not follower.failed.done()

        broker.start()
        assert (await asyncio.wait_for(waiting, 60)).offset > 2
        await asyncio.wait_for(starting, 60)
        await eventually(lambda: heart.connected, 10)
        for producer in (patient, hasty, late):
            await producer.send(control.TOPIC, Drain("after"), key="w", deadline_s=30)
        await follower.caught_up(30)
        assert seen.count("patient") == 1
        assert seen.count("doomed") == 0, "what was cut off isn't sent when the broker is back"
        assert seen.count("hasty") <= 1
        assert (seen.count("before"), seen.count("after")) == (3, 3)
        heart.stop()
        await follower.stop()
        for producer in (patient, hasty, late):
            await producer.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


async def _clients_at_work(settings: Settings) -> list[kafka.Client]:
    """A member of a group, and a producer with a record of an open transaction."""
    name = control.TOPIC.full_name(settings.namespace)
    member = kafka.consumer(settings, group="readers")
    await member.start()
    member.subscribe([name])
    await eventually(lambda: bool(member.assignment()), 10)
    owner = kafka.producer(settings, transactional_id="owner.0")
    await owner.start()
    await owner.begin_transaction()
    await (await owner.send(name, b"void", key=b"w"))
    return [member, owner]
