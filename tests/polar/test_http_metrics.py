"""Requests of a server, counted by route and status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from polar.event_streams import EventStreams
from polar.http_metrics import HttpMetrics
from tests.waiting import eventually

DEADLINE_S = 10.0


async def samples(metrics: HttpMetrics) -> dict[tuple[str, ...], float]:
    """Values by the metric's name and its labels' values, without the role."""
    text = (await metrics.scrape()).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("polar_"):
                assert sample.labels["role"] == "rest"
                found[sample.name, *(value for label, value in sample.labels.items() if label != "role")] = sample.value
    return found


async def test_requests_count_by_route_and_status_and_no_id_is_a_label() -> None:
    began, metrics, streams = asyncio.Event(), HttpMetrics("rest"), EventStreams()

    async def show(request: web.Request) -> web.Response:
        match request.match_info["task_id"]:
            case "gone":
                raise web.HTTPNotFound
            case "broken":
                raise ValueError("a fault of ours")
            case "slow":
                began.set()
                await asyncio.sleep(60)
        return web.Response(text="ok")

    async def events(request: web.Request) -> web.StreamResponse:
        async def frames() -> AsyncGenerator[bytes]:
            yield b"data: 1\n\n"
            await asyncio.sleep(60)

        return await streams.serve(request, frames())

    app = web.Application()
    app.add_routes([web.get("/tasks/{task_id}", show), web.get("/events", events, allow_head=False)])
    metrics.count(app)
    metrics.gauge("polar_event_streams", "Open streams", ("role",), lambda: {"rest": len(streams)})
    server = TestServer(app, handler_cancellation=True)
    async with TestClient(server) as client:
        for path in ("/tasks/a", "/tasks/b", "/tasks/gone", "/tasks/broken", "/nowhere"):
            await client.get(path)
        slow = asyncio.create_task(client.get("/tasks/slow"))
        await began.wait()
        slow.cancel()
        async with client.get("/events") as stream:
            assert await stream.content.readline() == b"data: 1\n"
            assert (await samples(metrics))["polar_event_streams",] == 1

        async def finished() -> dict[tuple[str, ...], float] | None:
            """The samples, once the two requests that the client left are over."""
            seen = await samples(metrics)
            ends = [("/tasks/{task_id}", "left"), ("/events", "left")]
            return seen if all(("polar_http_requests_total", *end) in seen for end in ends) else None

        found = await eventually(finished, DEADLINE_S)
    assert found is not None
    assert {key[1:]: value for key, value in found.items() if key[0] == "polar_http_requests_total"} == {
        ("/events", "left"): 1,
        ("/tasks/{task_id}", "200"): 2,
        ("/tasks/{task_id}", "404"): 1,
        ("/tasks/{task_id}", "500"): 1,
        ("/tasks/{task_id}", "left"): 1,
        ("none", "404"): 1,
    }
    assert found["polar_http_request_seconds_count",] == 5
    assert found["polar_event_streams",] == 0
