"""Peers that keep to no protocol, byte by byte on real connections: none holds memory, the loop or a connection for long."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from proxy.app import Proxy
from proxy.request_limits import VALUES
from proxy.session_key import KEY_HEADER
from tests.proxy.conftest import Bench, proxied
from tests.waiting import eventually
from topics.completions import Disowned
from topics.types.completion import Completion

DEADLINE_S = 10.0
Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(proxy: Proxy) -> AsyncIterator[Wire]:
    host, port = proxy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield reader, writer
    finally:
        writer.close()


def asking(key: str, body: bytes, *, path: str = "/v1/chat/completions", more: str = "") -> bytes:
    """A request's bytes."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{KEY_HEADER}: {key}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chat(text: str) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 2}).encode()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next answer's status and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(line for line in head.lower().split("\r\n") if line.startswith("content-length:"))
    return int(head.split()[1]), await reader.readexactly(int(length.split(":")[1]))


@pytest.mark.parametrize(
    "begun",
    [b"", b"POST /v1/chat/completions HTTP/1.1\r\nX-Polar-Key: ", b"P"],
    ids=["silent", "half a head", "one byte"],
)
@pytest.mark.parametrize("asked", [0, 1])
async def test_who_asks_no_more_or_only_half_is_hung_up_on(
    bench: Bench, engine_url: str, monkeypatch: pytest.MonkeyPatch, begun: bytes, asked: int
) -> None:
    monkeypatch.setattr("proxy.app.KEEPALIVE_S", 0.3)
    async with proxied(bench, engine_url) as proxy, connected(proxy) as (reader, writer):
        for _ in range(asked):
            writer.write(asking(bench.key(), chat("hi")))
            assert (await answer(reader))[0] == 200
        writer.write(begun)
        assert await reader.read() == b""


async def test_requests_in_one_write_are_answered_in_order(proxy: Proxy, bench: Bench) -> None:
    key = bench.key()
    async with connected(proxy) as (reader, writer):
        writer.write(b"".join(asking(key, chat(f"say {n}")) for n in range(20)))
        told = [json.loads((await answer(reader))[1])["id"] for _ in range(20)]
    assert [call.call_id for call in await bench.calls(20)] == told


async def test_a_body_that_unfolds_without_end_holds_nobody_up(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession
) -> None:
    bomb = gzip.compress(b"[" * 200_000_000, 1)
    async with connected(proxy) as (reader, writer):
        writer.write(asking(bench.key(), bomb, more="Content-Encoding: gzip\r\n"))
        status, told = await answer(reader)
        assert (status, json.loads(told)["error"]["code"]) == (413, "request_too_large")
        async with http.post(
            proxy.url + "/v1/chat/completions", headers={KEY_HEADER: bench.key()}, data=chat("hi")
        ) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b'{"messages": [' + b'{"role":"user"},' * VALUES + b"{}]}"),
        ("/v1/responses", b'{"input": "x", "tools": [' + b"{}," * VALUES + b"{}]}"),
        ("/v1/messages", b'{"messages": ' + b"[" * 2 * VALUES),
        ("/v1beta/models/m:generateContent", b'{"contents": [' + b"{}," * VALUES + b"{}]}"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
async def test_more_values_than_can_be_read_in_time_are_refused(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession, path: str, body: bytes
) -> None:
    async with http.post(proxy.url + path, headers={KEY_HEADER: bench.key()}, data=io.BytesIO(body)) as response:
        assert response.status == 413
        assert "values" in (await response.json())["error"]["message"]


async def test_an_answer_that_nobody_takes_is_given_up_and_disowned(
    proxy: Proxy, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.streaming.DELIVERY_S", 0.5)
    # Its answer repeats the metadata in three events, more than sockets hold.
    body = json.dumps({"input": "hi", "metadata": {"a": "x" * 5_000_000}, "stream": True}).encode()
    host, port = proxy.url.removeprefix("http://").split(":")
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(stalled, (host, int(port)))
        await loop.sock_sendall(stalled, asking(bench.key(), body, path="/v1/responses"))
        records = await bench.log(lambda found: any(isinstance(record, Disowned) for record in found))
    [call] = [record for record in records if isinstance(record, Completion)]
    assert [record.call_id for record in records if isinstance(record, Disowned)] == [call.call_id]
    await eventually(lambda: not proxy._model_api.replies)
