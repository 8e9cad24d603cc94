"""The token and the body of a request, and live workers as NVIDIA's nodes. Pure."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from polar.rest.answers import answering, decoded, has_token
from polar.rest.api import _seconds
from polar.rest.fleet_routes import node
from topics.types.errors import InputError
from topics.types.session import Stage
from topics.workers import Heartbeat, StageSlots

TOKEN = "s3cret"


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("headers", "is_valid"),
    [
        ({"Authorization": f"Bearer {TOKEN}"}, True),
        ({"Authorization": f"bearer {TOKEN}"}, True),
        ({"Authorization": basic(f"polar:{TOKEN}")}, True),
        ({"Authorization": basic(f":{TOKEN}")}, True),
        ({"X-Polar-Control-Token": TOKEN}, True),
        ({}, False),
        ({"Authorization": ""}, False),
        ({"Authorization": TOKEN}, False),
        ({"Authorization": f"Bearer {TOKEN}x"}, False),
        ({"Authorization": "Basic !"}, False),
        ({"Authorization": "Basic /w=="}, False),
        ({"Authorization": "Basic \udcff"}, False),
        ({"Authorization": basic(TOKEN)}, False),
        ({"Authorization": f"Digest {TOKEN}"}, False),
        ({"X-Polar-Control-Token": "\udcff"}, False),
    ],
)
def test_only_the_token_is_the_token(headers: dict[str, str], is_valid: bool) -> None:
    assert has_token(headers, TOKEN) is is_valid


def test_a_worker_is_a_node_with_its_slots() -> None:
    slots = [
        StageSlots(Stage.INIT, "default", 4, 3, []),
        StageSlots(Stage.RUN, "default", 8, 2, []),
        StageSlots(Stage.RUN, "gpu", 2, 2, []),
    ]
    found = node(
        Heartbeat("w-1", "worker", "host", 1, slots, leaving=True), datetime(2026, 1, 1, tzinfo=UTC), "http://rest"
    )
    assert (found["max_init_workers"], found["max_run_workers"], found["max_postrun_workers"]) == (4, 10, 0)
    assert (found["metrics"]["init_inflight"], found["metrics"]["run_inflight"]) == (1, 6)
    assert (found["node_id"], found["healthy"], found["draining"]) == ("w-1", True, True)
    assert (found["gateway_url"], found["last_heartbeat"]) == ("http://rest/nodes/w-1", "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"task_id": "\xff"}', "isn't JSON in UTF-8: 'utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"a":' * 100_000, "is nested too deeply"),
        (b"NaN", "isn't JSON in UTF-8: JSON is malformed"),
        (b"", "isn't JSON in UTF-8: Input data was truncated"),
    ],
    ids=["utf8", "lists", "objects", "nan", "empty"],
)
def test_a_body_that_is_no_json_is_the_callers_error(body: bytes, reason: str) -> None:
    with pytest.raises(InputError) as raised:
        decoded(body)
    assert (raised.value.field, raised.value.reason[: len(reason)]) == ("task", reason)


async def test_a_body_that_can_not_be_read_is_the_callers_error() -> None:
    async def read(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application(client_max_size=10, middlewares=[answering(TOKEN)])
    app.router.add_post("/", read)
    server = TestServer(app)
    async with TestClient(server) as client:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with client.post("/", data=b"x" * 11, headers=headers) as answer:
            assert answer.status == 413
            assert (await answer.json())["detail"] == "the request's body has more than 10 bytes; send less"
        async with client.post("/", data=b"no gzip", headers=headers | {"Content-Encoding": "gzip"}) as answer:
            assert (answer.status, "content-encoding" in (await answer.json())["detail"]) == (400, True)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "x", ""])
def test_a_time_is_a_finite_number(text: str) -> None:
    with pytest.raises(InputError, match="since: must be a Unix time in seconds"):
        _seconds(text)


async def test_a_connection_of_the_server_s_own_that_fails_is_its_error() -> None:
    async def fail(_: web.Request) -> web.Response:
        raise ConnectionRefusedError("the blob store")

    app = web.Application(middlewares=[answering(TOKEN)])
    app.router.add_get("/", fail)
    async with (
        TestClient(TestServer(app)) as client,
        client.get("/", headers={"Authorization": f"Bearer {TOKEN}"}) as answer,
    ):
        assert (answer.status, await answer.json()) == (500, {"detail": "the server failed; its log says why"})
