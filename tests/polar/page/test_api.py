"""The page's API over real HTTP, a real Kafka and a lake, both filled with sessions of the real types."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema_rs
import msgspec
import pytest
import schemathesis
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from analytics.health import Flag
from analytics.live.view import Live
from polar.fleet.fleet import Fleet
from polar.page.access import with_token
from polar.page.api import Api, Route
from polar.page.following import Following, Looking
from polar.page.openapi import document
from polar.page.service import serve
from proxy.addresses import Binding
from proxy.control.api import json_errors
from tests.polar.coordinator import Coordinator, task
from tests.polar.page.filled import fill
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError

SHOWN_S = 120.0
TOKEN = {"Authorization": "Bearer secret"}
SESSIONS = 40
FLAGGED = len(Flag)
LONG = "SELECT count(*) FROM range(1000000000000) AS a(i) WHERE hash(i) = 1"
"""A query that takes hours."""


@pytest.fixture
def page_settings(settings: Settings, tmp_path: Path) -> Settings:
    token = tmp_path / "token"
    token.write_text("secret")
    return settings.model_copy(update={"control_token_file": token, "data": tmp_path / "data"})


@pytest.fixture
async def page(page_settings: Settings) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a running page."""
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(page_settings, Binding("127.0.0.1", 0), stop=stop, ready=url.set_result))
    await asyncio.wait([serving, url], return_when=asyncio.FIRST_COMPLETED)
    async with aiohttp.ClientSession(url.result(), headers=TOKEN) as client:
        yield client
    stop.set()
    await serving


async def get(page: aiohttp.ClientSession, path: str, **more: Any) -> Any:
    async with page.get(path, **more) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def status(page: aiohttp.ClientSession, method: str, path: str, **more: Any) -> tuple[int, str]:
    """Status and code of an error."""
    async with page.request(method, path, **more) as answer:
        found = await answer.json()
        return answer.status, found["error"]["code"] if "error" in found else ""


async def complete(page: aiohttp.ClientSession, count: int = SESSIONS + FLAGGED) -> list[dict[str, Any]]:
    """All sessions, once all were read with their trajectories."""

    async def rows() -> Any:
        found = (await get(page, "/api/sessions"))["sessions"]
        overview = await get(page, "/api/overview")
        return found if len(found) == count and overview["live"]["reading"] is None else None

    found: list[dict[str, Any]] = await eventually(rows, SHOWN_S)
    return found


def routes() -> list[Route]:
    settings = Settings(kafka="127.0.0.1:1")
    return Api(settings, Following(settings), document).routes()


DOCUMENT = document(routes())


def validated(path: str, answer: Any, method: str = "get") -> Any:
    """The answer, which fits the document's schema of the path."""
    schema = DOCUMENT["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema_rs.validator_for({**schema, "components": DOCUMENT["components"]}).validate(answer)
    return answer


def test_the_document_is_openapi_3_1_and_names_every_route() -> None:
    schemathesis.openapi.from_dict(DOCUMENT).validate()
    assert {(route.method, route.path) for route in routes()} == {
        (method.upper(), path) for path, of_path in DOCUMENT["paths"].items() for method in of_path
    }


async def test_everything_that_a_page_shows_is_read_from_the_log(
    page: aiohttp.ClientSession, page_settings: Settings
) -> None:
    await fill(page_settings, SESSIONS)
    rows = await complete(page)
    assert [row["changed_at"] for row in rows] == sorted((row["changed_at"] for row in rows), reverse=True)
    flags = {name: row for row in rows if row["task_id"] == "flags" for name in row["flags"]}
    assert set(flags) == {flag.value for flag in Flag}
    assert [one["name"] for one in validated("/api/flags", await get(page, "/api/flags"))] == [
        flag.value for flag in Flag
    ]

    pages: list[Any] = []
    after: str | None = ""
    while after is not None:
        found = validated(
            "/api/sessions",
            await get(page, "/api/sessions", params={"limit": "7"} | ({"after": after} if after else {})),
        )
        pages += found["sessions"]
        after = found["next"]
    assert pages == rows

    overview = validated("/api/overview", await get(page, "/api/overview"))
    assert overview["runs"] == ["day", "faults", "night"]
    ended = [row for row in rows if row["phase"] == "ended"]
    assert sum(bucket["sessions"] for bucket in overview["series"][""]["buckets"]) == len(ended)
    assert sum(one["sessions"] for one in overview["harnesses"]) == len(ended)

    await _a_session(page)
    await _a_group(page)


async def _a_session(page: aiohttp.ClientSession) -> None:
    name = "/api/sessions/task-00000.0"
    found = validated("/api/sessions/{session_id}", await get(page, name))
    assert (found["session_id"], found["row"]["reward"], found["row"]["flags"]) == ("task-00000.0", 1.0, [])
    assert [stage["outcome"] for stage in found["timeline"]] == ["finished", "COMPLETED", "finished"]
    assert len(found["calls"]) == 3
    assert "prompt_rest" not in found["calls"][0]["record"]
    cut = await get(page, "/api/sessions/flags.1")
    assert [(flag["name"], flag["calls"]) for flag in cut["flags"]] == [("answer_cut", [2])]

    tokens = validated("/api/sessions/{session_id}/tokens", await get(page, f"{name}/tokens"))
    [trace] = found["traces"]
    assert (tokens["trace_id"], tokens["total"], len(tokens["tokens"])) == (trace["trace_id"], 9, 9)
    assert [token["call"] for token in tokens["tokens"]] == [None] * 4 + [1, 1, None, 3, 3]
    assert [token["trained"] for token in tokens["tokens"]] == [token["call"] is not None for token in tokens["tokens"]]
    part = await get(page, f"{name}/tokens", params={"start": "3", "limit": "3"})
    assert part["tokens"] == tokens["tokens"][3:6]

    patch = validated(
        "/api/sessions/{session_id}/artifacts/{name}",
        await get(page, f"{name}/artifacts/patch", params={"limit": "20"}),
    )
    assert (patch["text"], patch["cut"]) == ("--- a/clock.py\n+++ b", True)
    [flagged] = validated("/api/sessions/{session_id}/why", await get(page, "/api/sessions/flags.1/why"))
    assert flagged["cause"] == "answer_cut"
    assert await status(page, "GET", "/api/sessions/nobody.0/why") == (404, "unknown")
    assert await status(page, "GET", f"{name}/artifacts/none") == (404, "unknown")
    assert await status(page, "GET", f"{name}/tokens", params={"trace": "9"}) == (404, "unknown")
    assert await status(page, "GET", "/api/sessions/nobody.0") == (404, "unknown")
    assert await status(page, "GET", "/api/sessions", params={"limit": "0"}) == (400, "bad_input")


async def _a_group(page: aiohttp.ClientSession) -> None:
    group = validated("/api/tasks/{task_id}", await get(page, "/api/tasks/task-00000"))
    assert (group["num_samples"], group["instruction"], group["common_calls"]) == (4, "mend the clock", 2)
    first, *_ = group["sessions"][0]["calls"]
    assert (first["text"], first["tools"], first["kind"]) == ("first look around", ["bash"], "main")
    assert await status(page, "GET", "/api/tasks/nobody") == (404, "unknown")


async def test_the_lake_has_what_memory_has_forgotten_and_answers_sql(
    page: aiohttp.ClientSession, page_settings: Settings
) -> None:
    assert await status(page, "POST", "/api/sql", json={"sql": "SELECT 1"}) == (503, "not_ready")
    await fill(page_settings, 8)
    lake = {"source": "lake", "q": "reward = 1 -- solved"}
    found = validated("/api/sessions", await get(page, "/api/sessions", params=lake))
    assert {row["reward"] for row in found["sessions"]} == {1.0}
    assert found["sessions"][0]["flags"] is None
    assert await status(page, "GET", "/api/sessions", params=lake | {"q": "nothing = 1"}) == (400, "bad_input")

    async def ask(sql: str, **more: Any) -> Any:
        async with page.post("/api/sql", json={"sql": sql, **more}) as answer:
            return validated("/api/sql", await answer.json(), "post") if answer.status == 200 else await answer.json()

    answer = await ask("SELECT i, 'a' AS b, TIMESTAMPTZ '2026-01-01' AS t FROM range(5) AS r(i)", limit=3)
    assert [column["name"] for column in answer["columns"]] == ["i", "b", "t"]
    assert (len(answer["rows"]), answer["cut"], answer["rows"][2][:2]) == (3, True, [2, "a"])
    assert (await ask("DROP VIEW sessions"))["error"]["code"] == "bad_input"

    async def ask_long() -> None:
        while (await ask(LONG)).get("error", {}).get("code") == "busy":
            pass  # the query below came first

    long = asyncio.create_task(ask_long())

    async def is_busy() -> bool:
        return await status(page, "POST", "/api/sql", json={"sql": "SELECT 1"}) == (409, "busy")

    await eventually(is_busy, SHOWN_S)
    long.cancel()  # the client leaves
    await eventually(lambda: _answers(ask), SHOWN_S)


async def _answers(ask: Any) -> bool:
    return "rows" in await ask("SELECT 1")


async def test_a_query_ends_at_its_deadline(
    page: aiohttp.ClientSession, page_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polar.page.sql_box.DEADLINE_S", 1.0)
    await fill(page_settings, 4)
    assert await status(page, "POST", "/api/sql", json={"sql": LONG}) == (400, "timeout")


async def test_a_stream_tells_of_changes_and_a_task_is_cancelled_and_the_fleet_paused(
    page: aiohttp.ClientSession, page_settings: Settings, coordinator: Coordinator
) -> None:
    request = task("t", 2)
    await coordinator.show(request)
    await coordinator.end(request, 0)
    await complete(page, 1)
    version = (await get(page, "/api/sessions"))["version"]
    await coordinator.end(request, 1)
    async with page.get("/api/stream", params={"since": str(version)}) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        async with aclosing(_events(answer)) as events:
            seen: dict[str, Any] = {}
            async with asyncio.timeout(SHOWN_S):
                async for name, data in events:
                    seen[name] = data
                    if {"sessions", "overview"} <= seen.keys():
                        break
    assert [row["session_id"] for row in seen["sessions"]["sessions"]] == ["t.1"]
    assert seen["overview"]["live"]["tasks"] == 1

    assert await status(page, "POST", "/api/tasks/nobody/cancel", json={}) == (404, "unknown")
    assert await coordinator.cancels_of("t") == 0
    assert await status(page, "POST", "/api/tasks/t/cancel", json={}) == (200, "")
    assert await coordinator.cancels_of("t") == 1
    for action, is_paused in (("pause", True), ("resume", False)):
        assert await status(page, "POST", f"/api/fleet/{action}", json={}) == (200, "")
        async with Fleet(page_settings) as fleet:
            assert (await fleet.status()).state.paused is is_paused


async def _events(answer: aiohttp.ClientResponse) -> AsyncGenerator[tuple[str, Any]]:
    name = ""
    async for line in answer.content:
        key, _, value = line.decode().rstrip("\n").partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


async def test_every_request_of_the_api_needs_the_token_also_on_loopback(page: aiohttp.ClientSession) -> None:
    """A task of a cell may be allowed to reach the port, and a reverse proxy passes requests of others."""
    for operations in DOCUMENT["paths"].items():
        for method in operations[1]:
            path = operations[0].replace("{", "").replace("}", "")
            for none in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}):
                found = await status(page, method, path, json={} if method == "post" else None, headers=none)
                assert found == ((200, "") if path == "/api/openapi.json" else (401, "unauthenticated")), path
    for path in ("/", "/static/main.js"):
        async with page.get(path, headers={"Authorization": ""}) as answer:
            assert answer.status == 200


def test_the_printed_address_has_the_token_where_browsers_send_it_to_nobody(page_settings: Settings) -> None:
    assert page_settings.control_token_file is not None
    page_settings.control_token_file.write_text("a/b+c#&=%")
    assert with_token("http://127.0.0.1:1", page_settings) == "http://127.0.0.1:1/#token=a%2Fb%2Bc%23%26%3D%25"


async def test_without_a_token_there_is_no_page() -> None:
    with pytest.raises(NotReadyError, match="POLAR_CONTROL_TOKEN_FILE"):
        await serve(Settings(kafka="127.0.0.1:1"), Binding("127.0.0.1", 0), stop=asyncio.Event(), ready=pytest.fail)


async def test_only_a_browser_of_this_machine_and_origin_may_read(page: aiohttp.ClientSession) -> None:
    async with page.get("/api/flags") as answer:
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for host in ("evil.example", "evil.example:80", "10.0.0.1", "", "localhost.evil.example"):
        assert await status(page, "GET", "/api/flags", headers={"Host": host}) == (403, "wrong_host")
    for host in ("localhost:1", "127.0.0.1", "[::1]:8420", "LOCALHOST"):
        assert (await status(page, "GET", "/api/openapi.json", headers={"Host": host}))[0] == 200
    foreign: list[dict[str, str]] = [
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ]
    for headers in foreign:
        assert await status(page, "GET", "/api/flags", headers=headers) == (403, "cross_site")
    assert await status(page, "POST", "/api/sql", data="{}", headers={"Content-Type": "text/plain"}) == (
        400,
        "bad_input",
    )


async def test_another_address_has_names_of_its_own(page_settings: Settings) -> None:
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(page_settings, Binding("0.0.0.0", 0), stop=stop, ready=url.set_result))
    await asyncio.wait([serving, url], return_when=asyncio.FIRST_COMPLETED)
    async with aiohttp.ClientSession(url.result().replace("0.0.0.0", "127.0.0.1")) as page:
        named = {"Host": "node-7.example"}
        assert await status(page, "GET", "/api/flags", headers=named) == (401, "unauthenticated")
        assert await status(page, "POST", "/api/sql", json={"sql": "SELECT 1"}, headers=named) == (
            401,
            "unauthenticated",
        )
        assert (await status(page, "GET", "/api/openapi.json", headers=named))[0] == 200
        async with page.get("/api/flags", headers=named | TOKEN) as answer:
            assert answer.status == 200
    stop.set()
    await serving


async def test_kafka_is_followed_only_while_somebody_looks(settings: Settings) -> None:
    following = Following(settings, idle_s=0.2)
    assert following.users == 0
    async with following.looking() as looking, following.looking() as same:
        assert looking is same
        assert (following.is_open, following.users) == (True, 2)
        assert msgspec.to_builtins(looking.snapshot())["tasks"] == 0
    assert following.is_open, "a page that is loaded again reads nothing again"
    async with following.looking() as again:
        assert again is looking
    await eventually(_closed(following), SHOWN_S)


async def test_a_visitor_during_the_end_waits_for_it_and_cancels_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    end = Live.__aexit__

    async def slow(live: Live, *error: object) -> None:
        ending.set()
        await go_on.wait()
        await end(live, *error)
        ended.set()

    monkeypatch.setattr(Live, "__aexit__", slow)
    following = Following(settings, idle_s=0.05)
    async with following.looking() as first:
        pass
    await ending.wait()

    async def look() -> Looking:
        async with following.looking() as found:
            assert ended.is_set()
            return found

    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    go_on.set()
    assert await looking is not first
    await following.close()


async def test_whoever_only_asks_the_lake_uses_the_page(tmp_path: Path) -> None:
    settings = Settings(kafka="127.0.0.1:1", data=tmp_path)
    following = Following(settings, idle_s=0.01)
    app = web.Application(middlewares=[json_errors])
    Api(settings, following, document).add_to(app)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/api/questions")).status == 200
    async with asyncio.timeout(SHOWN_S):
        await following.abandoned.wait()


def _closed(following: Following) -> Any:
    async def closed() -> bool:
        return not following.is_open

    return closed


async def test_a_page_without_kafka_says_so(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    settings = Settings(kafka="127.0.0.1:1", control_token_file=tmp_path / "token")
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(settings, Binding("127.0.0.1", 0), stop=stop, ready=url.set_result))
    async with aiohttp.ClientSession(await url, headers=TOKEN) as page:
        assert await status(page, "GET", "/api/overview") == (503, "not_ready")
    stop.set()
    await serving
