"""Kafka dies under a trainer and comes back: waiting goes on, or ends with a word, as was asked; nothing comes twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from polar.embedded import Broker
from polar.trainer import TrajectoryConsumer, reader
from tests.polar.trainer.writing import Writer, trajectory
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError

pytestmark = pytest.mark.hard

DEADLINE_S = 60.0


async def test_an_outage_costs_time_or_a_word(tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "ANSWER_S", 1.0)
    broker = Broker(tmp_path, announce=print)
    with broker:
        settings = Settings(kafka=broker.bootstrap, namespace=namespace, data=tmp_path, replication=1, min_insync=1)
        async with Writer(settings) as writer:
            await writer.write([trajectory("before")])
        patient = TrajectoryConsumer(settings=settings)
        hasty = TrajectoryConsumer(settings=settings, timeout_s=0.1, outage_s=1)
        async with patient, hasty, asyncio.timeout(DEADLINE_S):
            assert (await anext(aiter(patient))).session_id == "before.0"
            assert (await anext(aiter(hasty))).session_id == "before.0"
            broker.kill()
            waiting = asyncio.ensure_future(anext(aiter(patient)))
            with pytest.raises(NotReadyError, match="has been away for 1 s"):
                await anext(aiter(hasty))
            assert not waiting.done()
            await asyncio.to_thread(broker.start)
            async with Writer(settings) as writer:
                await writer.write([trajectory("after")])
            assert (await waiting).session_id == "after.0"
            assert [one.session_id async for one in hasty] == ["after.0"]
