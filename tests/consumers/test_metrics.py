"""Prometheus reads what happened, and no client of the metrics port can hold up the work."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from consumers import metrics_http
from consumers.metrics import REASONS, Metrics
from tests.consumers.stages.coordinating import PATIENCE_S, Coordinator, shell, ticket, working
from tests.serving import free_port
from tests.waiting import eventually
from topics import stages
from topics.environment.settings import Settings
from topics.events import RunFinished
from topics.log.heartbeat import HeartbeatSender
from topics.log.kafka import TopicPartition
from topics.log.lag import Lag
from topics.types.errors import NotReadyError
from topics.types.session import Stage

HOST = "127.0.0.1"
Samples = dict[tuple[str, ...], float]


def samples_of(metrics: Metrics) -> Samples:
    """Every sample by its name and its labels' values, in the labels' alphabetic order."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


async def request(port: int, line: str) -> tuple[int, str]:
    """Status and body."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(f"{line} HTTP/1.1\r\nHost: polar\r\n\r\n".encode())
    async with asyncio.timeout(10):
        answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


def test_values_of_one_name_are_added_up_and_each_name_is_listed_once() -> None:
    metrics = Metrics()
    for slots in ({("gpu", "run"): 8}, {("gpu", "run"): 4, ("gpu", "init"): 2}):
        metrics.gauge("polar_worker_slots", "Slots", ("pool", "stage"), lambda slots=slots: slots)  # type: ignore[misc] # a default binds the loop's value
    metrics.counter("polar_lake_rows", "Rows", (), lambda: 7)
    samples = samples_of(metrics)
    assert samples["polar_worker_slots", "gpu", "run"] == 12
    assert samples["polar_worker_slots", "gpu", "init"] == 2
    assert samples["polar_lake_rows_total",] == 7
    assert metrics.text().decode().count("# TYPE polar_worker_slots gauge") == 1


def test_writers_of_the_log_do_not_choose_the_number_of_labels() -> None:
    skipped = Counter({f"unknown_{n}": 2 for n in range(REASONS + 30)})
    metrics = Metrics()
    metrics.skipped("coordinator", lambda: skipped)
    samples = {key: value for key, value in samples_of(metrics).items() if key[0] == "polar_skipped_total"}
    assert len(samples) == REASONS + 1
    assert samples["polar_skipped_total", "other", "coordinator"] == 60
    assert sum(samples.values()) == sum(skipped.values())


async def test_a_process_is_ready_while_its_heartbeats_arrive(kafka: str, settings: Settings) -> None:
    away = Settings(kafka=f"{HOST}:{free_port()}", data=settings.data)
    heart = HeartbeatSender(away, lambda: HeartbeatSender.heartbeat("worker-1", "fanout"))
    metrics, port = Metrics(), free_port()
    async with metrics_http.serve_metrics(metrics, HOST, port):
        assert await request(port, "GET /readyz") == (503, "it is starting\n")
        metrics.heart("fanout", heart)
        status, why = await request(port, "GET /readyz")
        assert (status, "no heartbeat of fanout" in why) == (503, True)
        assert await request(port, "GET /healthz") == (200, "ok\n")
        assert samples_of(metrics)["polar_connected", "fanout"] == 0
        assert (await request(port, "POST /metrics"))[0] == 405
        assert (await request(port, "HEAD /metrics")) == (200, "")
        assert (await request(port, "GET /secrets"))[0] == 404
        with pytest.raises(NotReadyError, match=f"{HOST}:{port}.*--metrics-port"):
            async with metrics_http.serve_metrics(metrics, HOST, port):
                pass


async def test_clients_that_never_end_their_requests_and_connections_too_many_are_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_http, "CONNECTIONS", 2)
    monkeypatch.setattr(metrics_http, "REQUEST_S", 1.0)
    metrics, port = Metrics(), free_port()
    async with metrics_http.serve_metrics(metrics, HOST, port), asyncio.timeout(20):
        idle, first = await asyncio.open_connection(HOST, port)
        first.write(b"GET /met")
        assert (await request(port, "GET /healthz"))[0] == 200
        endless, second = await asyncio.open_connection(HOST, port)
        third_reader, third = await asyncio.open_connection(HOST, port)
        assert await ended(third_reader), "a third connection is cut off at once"
        assert not idle.at_eof()
        second.write(b"x" * 1_000_000)
        assert b" 400 " in await endless.readline()
        assert await ended(idle)
        for writer in (first, second, third):
            writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Wait until the server ends the connection; whether it did so without an answer."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_a_workers_metrics_are_what_happened(settings: Settings, coordinator: Coordinator) -> None:
    metrics = Metrics()
    run = ("default", "run")
    async with working(settings, list(Stage), metrics=metrics):
        runtime = await coordinator.initialised(shell("first", "true"))
        held = shell("held", "sleep 60")
        kept = await coordinator.initialised(held)
        await coordinator.granted(ticket(shell("first", "true"), Stage.RUN, runtime=runtime))
        await coordinator.fact(RunFinished, "first.0")
        claimed = await coordinator.granted(ticket(held, Stage.RUN, runtime=kept))
        await coordinator.discard("first.0", runtime)
        name = stages.topic(Stage.RUN, "default").full_name(settings.namespace)
        partition = await coordinator.partition(Stage.RUN)
        await coordinator.log.send_bytes(name, b"\x81\xa4type\xa6newest", key=b"k")
        await eventually(
            lambda: samples_of(metrics).get(("polar_skipped_total", "unknown_newest", "stages")), PATIENCE_S
        )
        await eventually(lambda: samples_of(metrics)["polar_runtimes_removed_total", "discarded"], PATIENCE_S)
        samples = samples_of(metrics)
        assert partition >= 0
        assert samples["polar_worker_slots", *run] == 2
        assert samples["polar_worker_slots_free", *run] == 1
        assert samples["polar_tickets_total", *run] == 2
        assert samples["polar_tickets_total", "default", "init"] == 2
        assert samples["polar_tickets_total", "default", "evaluate"] == 0
        assert samples["polar_claims_granted_total", "run"] == 2
        assert samples["polar_claims_ended_total", "finished", "run"] == 1
        assert samples["polar_claims_ended_total", "finished", "init"] == 2
        assert samples["polar_connected", "stages"] == 1
        assert metrics.unready_reason() is None
        await coordinator.revoke(claimed.claim_id, "held.0")
        await eventually(lambda: samples_of(metrics)["polar_worker_slots_free", *run] == 2, PATIENCE_S)
        assert samples_of(metrics)["polar_claims_ended_total", "revoked", "run"] == 1


async def test_a_lag_that_kafka_does_not_tell_is_left_out(tmp_path: Path) -> None:
    away = Settings(kafka=f"{HOST}:{free_port()}", data=tmp_path)
    metrics = Metrics()
    metrics.lag("idle", Lag(away, dict))
    metrics.lag("behind", Lag(away, lambda: {TopicPartition("polar.tasks", 0): 3}))
    await metrics.scrape()
    assert {key: value for key, value in samples_of(metrics).items() if key[0] == "polar_lag"} == {
        ("polar_lag", "idle"): 0
    }
