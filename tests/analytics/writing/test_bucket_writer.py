"""The writer of a lake in a bucket of a real S3 server, read from another host, while the server dies and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from analytics.queries.query import connect
from analytics.writing.writer import run_analytics
from polar.page.sql_box import SqlBox
from tests.analytics.loading import arrived, on_the_log, send, tasks
from tests.s3_server import BUCKET, S3Server, s3_server
from tests.waiting import eventually
from topics.contract import catalogue
from topics.environment import s3
from topics.environment.settings import Settings
from topics.log import admin
from topics.types.errors import InputError

FRESH_S = 15.0
"""Three times what a quiet machine needs at most: other tests compute beside this one."""
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as made:
        yield made


@pytest.fixture
def server(shared_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in shared_server.variables.items():
        monkeypatch.setenv(name, value)
    return shared_server


@pytest.fixture
async def settings(kafka: str, namespace: str, tmp_path: Path, server: S3Server) -> Settings:
    made = Settings(
        kafka=kafka, namespace=namespace, data=tmp_path / "a", lake=f"s3://{BUCKET}/lakes", replication=1, min_insync=1
    )
    await admin.apply(made, catalogue.FIXED, embedded=True)
    return made


async def test_a_host_reads_what_another_writes_and_an_outage_of_the_server_costs_nothing(
    settings: Settings, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "RETRIES", 2)
    elsewhere = settings.model_copy(update={"data": tmp_path / "b"})
    load, stop = tasks(30, seed=1), asyncio.Event()

    def calls() -> int:
        with connect(elsewhere) as reader:
            ((count,),) = reader.ask("SELECT count(*) FROM calls").rows()
        return int(count)

    running = asyncio.create_task(run_analytics(settings, stop))
    try:
        await send(settings, *load[:50])
        await arrived(settings, await on_the_log(settings, None), DEADLINE_S)
        await asyncio.to_thread(calls)
        for start in (50, 75):
            await send(settings, *load[start : start + 25])
            sent_at = time.monotonic()
            expected = sum(type(one.record).__name__ == "Completion" for one in load[: start + 25])
            while await asyncio.to_thread(calls) < expected:
                assert time.monotonic() - sent_at < FRESH_S
        found = await SqlBox(elsewhere).ask("SELECT count(*) FROM calls", 10)
        assert found.rows == [[await asyncio.to_thread(calls)]]

        with capture_logs() as log:
            server.kill()
            await send(settings, *load[100:])
            await eventually(lambda: bool(_why(log)), DEADLINE_S)
            assert "(POLAR_LAKE): no answer (Connection refused" in _why(log)[0]
            server.start()
            await arrived(settings, await on_the_log(settings, None), DEADLINE_S)
            assert any(line["action"] == "analytics.recovered" for line in log)
        assert await asyncio.to_thread(calls) == sum(type(one.record).__name__ == "Completion" for one in load)
    finally:
        stop.set()
        await asyncio.wait_for(running, DEADLINE_S)


def _why(log: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        line["why"] for line in log if line["action"] == "analytics.failing" and "writing the lake in" in line["event"]
    ]


async def test_a_writer_without_its_bucket_ends_with_the_setting_and_the_way_out(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"lake": "s3://nowhere/lake"})
    with pytest.raises(InputError, match=r"POLAR_LAKE: .*NoSuchBucket: create the bucket.*s3://nowhere/lake"):
        await asyncio.wait_for(run_analytics(nowhere, asyncio.Event()), DEADLINE_S)
