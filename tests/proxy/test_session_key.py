"""Where a key is looked for, over a real connection: every provider's place, ours, and the URL's prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from proxy.session_key import PATH_PREFIX, key_of, path_of, refused_key_of

KEY = "sk-polar-k"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A server that tells which key it found, and the path without it."""

    async def told(request: web.Request) -> web.Response:
        return web.json_response([key_of(request), path_of(request), refused_key_of(request)])

    app = web.Application()
    app.router.add_get(PATH_PREFIX + "/v1/x", told)
    app.router.add_get("/{path:.*}", told)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.mark.parametrize(
    ("path", "headers", "key"),
    [
        ("/v1/x", {"Authorization": f"Bearer {KEY}"}, KEY),
        ("/v1/x", {"Authorization": f"bearer  {KEY}"}, KEY),
        ("/v1/x", {"Authorization": "Basic abc"}, None),
        ("/v1/x", {"Authorization": "Bearer"}, None),
        ("/v1/x", {"x-api-key": KEY}, KEY),
        ("/v1/x", {"x-goog-api-key": KEY}, KEY),
        ("/v1/x", {"X-Polar-Key": KEY}, KEY),
        (f"/v1/x?key={KEY}&alt=sse", {}, KEY),
        (f"/s/{KEY}/v1/x", {}, KEY),
        (f"/s/{KEY}/v1/x", {"Authorization": "Bearer dummy"}, KEY),
        ("/v1/x", {"x-api-key": "dummy", "Authorization": f"Bearer {KEY}"}, KEY),
        ("/v1/x", {"x-api-key": "dummy"}, "dummy"),
        ("/v1/x", {}, None),
    ],
)
async def test_a_key_is_found_wherever_a_client_puts_it(
    url: str, path: str, headers: dict[str, str], key: str | None
) -> None:
    async with aiohttp.ClientSession() as session, session.get(url + path, headers=headers) as response:
        assert await response.json() == [key, "/v1/x", key]


@pytest.mark.parametrize("path", [f"//s/{KEY}/v1/x", f"/v1/s/{KEY}/v1/x", f"/s/{KEY}/s/%73{KEY[1:]}/v1/x"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer dummy"}])
async def test_a_key_in_the_wrong_place_of_a_path_is_never_told_and_names_the_session_of_a_refused_request(
    url: str, path: str, headers: dict[str, str]
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(URL(url + path, encoded=True), headers=headers) as response,
    ):
        found, told, refused = await response.json()
    assert told.endswith("/…/v1/x")
    assert KEY not in told
    assert refused == KEY
    assert found in (None, "dummy") or path.startswith("/s/")


async def test_a_key_where_it_belongs_counts_more_than_one_in_the_wrong_place(url: str) -> None:
    headers = {"X-Polar-Key": KEY}
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/{KEY}2/x", headers=headers) as response:
        assert await response.json() == [KEY, "/v1/…/x", KEY]
