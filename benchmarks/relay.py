"""CPU of a model call's way out of a cell, by the cell's relay and by a relay made of aiohttp.

    python -m benchmarks.relay [--format table|json]

An upstream that answers at once with fixed bytes; before it the relay of `consumers/runtimes/cell/relay.py` and one of aiohttp's server and
client, as lean as their options make them, each in a process of its own with asyncio's loop, as a stage worker has it. Blocks of calls go
through both in turn. CPU is that of the relay's process, by the kernel. A call is a request of 1 kB. Its answer is 300 bytes of JSON, or a
stream of 512 events: in one write, as the proxy sends it, or event by event, as after keep-alives.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import aiohttp
import psutil
from aiohttp import web
from yarl import URL

from benchmarks import report
from benchmarks.load import LENGTH, Caller
from benchmarks.report import Figure, say
from benchmarks.system import child, cpu, written
from consumers.runtimes.cell.http_requests import OF_ONE_HOP
from consumers.runtimes.cell.relay import KEY_HEADERS, model_relay

READY_S = 30.0
KEY = "sk-polar-" + "k" * 400
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "the quick brown fox " * 45}]}).encode()
SHORT = json.dumps({"id": "chatcmpl-1", "choices": [{"message": {"content": "the fox sees all " * 12}}]}).encode()
EVENTS = [b'data: {"choices":[{"delta":{"content":"%03d the fox"}}]}\n\n' % number for number in range(512)]
EVENT_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CASES = (("short answer", "/v1/short", 1), ("short answer, 16 at once", "/v1/short", 16))
STREAMS = (("512 events in one write", "/v1/whole", 1), ("512 events, each its own write", "/v1/events", 1))
CONNECTING = "short answer, each on a new connection"
BLOCK = 320
STREAM_BLOCK = 160
BLOCKS = 12
WARM_UP = 2
"""Blocks that don't count."""


def request(path: str) -> bytes:
    """A call as a client sends it."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:11800\r\nAccept: application/json\r\nAccept-Encoding: gzip, deflate\r\n"
        "User-Agent: OpenAI/JS 5.0\r\nX-Stainless-Lang: js\r\nX-Stainless-OS: Linux\r\nX-Stainless-Retry-Count: 0\r\n"
        "Authorization: Bearer placeholder\r\nContent-Type: application/json\r\nConnection: keep-alive\r\n"
    )
    return f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY


class Upstream(asyncio.Protocol):
    """Answers a path's fixed bytes; one request at a time."""

    def __init__(self) -> None:
        self._held = b""
        self._streaming: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._held += data
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return
        length = LENGTH.search(self._held, 0, end + 2)
        whole = end + 4 + (int(length[1]) if length else 0)
        if len(self._held) < whole and b"\r\n0\r\n\r\n" not in self._held:
            return
        path = self._held.split(b" ", 2)[1]
        self._held = b""
        if path == b"/v1/events":
            self._streaming = asyncio.get_running_loop().create_task(self._stream(), name="events")
            return
        body, kind = (b"".join(EVENTS), EVENT_STREAM) if path == b"/v1/whole" else (SHORT, b"HTTP/1.1 200 OK\r\n")
        self._transport.write(kind + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    async def _stream(self) -> None:
        self._transport.write(EVENT_STREAM + b"Transfer-Encoding: chunked\r\n\r\n")
        for event in EVENTS:
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
            await asyncio.sleep(0)
        self._transport.write(b"0\r\n\r\n")


@asynccontextmanager
async def aiohttp_relay(listener: socket.socket, url: str, key: str) -> AsyncIterator[None]:
    """The same way of aiohttp's parts: bodies flow, the key is replaced; what else `relay.py` sees to is left out."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
    ) as session:

        async def handle(asked: web.Request) -> web.StreamResponse:
            headers = [
                (name, value)
                for name, value in asked.headers.items()
                if (lowered := name.lower().encode()) not in OF_ONE_HOP and lowered not in KEY_HEADERS
            ]
            headers.append(("Authorization", f"Bearer {key}"))
            if asked.content_length is not None:
                headers.append(("Content-Length", str(asked.content_length)))
            data = asked.content if asked.can_read_body else None
            target = URL(url + asked.raw_path, encoded=True)
            async with session.request(
                asked.method, target, headers=headers, data=data, allow_redirects=False
            ) as answer:
                kept = {n: v for n, v in answer.headers.items() if n.lower().encode() not in OF_ONE_HOP}
                response = web.StreamResponse(status=answer.status, headers=kept)
                response.content_length = answer.content_length
                await response.prepare(asked)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        try:
            yield
        finally:
            await runner.cleanup()


async def serve(role: str, url: str, ready: Path) -> None:
    """One of the processes: `upstream`, `own` or `aiohttp`, until killed."""
    listener = socket.create_server(("127.0.0.1", 0))
    async with AsyncExitStack() as stack:
        if role == "upstream":
            await asyncio.get_running_loop().create_server(Upstream, sock=listener)
        else:
            await stack.enter_async_context({"own": model_relay, "aiohttp": aiohttp_relay}[role](listener, url, KEY))
        ready.write_text(f"http://127.0.0.1:{listener.getsockname()[1]}")
        await asyncio.Event().wait()


@dataclass
class Measured:
    """One relay in one case."""

    url: str
    process: psutil.Process
    cpu: list[float] = field(default_factory=list)
    """Seconds a call, by block."""
    latencies: list[float] = field(default_factory=list)

    async def block(self, path: str, callers: int, calls: int, *, is_new: bool) -> None:
        """Makes a block of calls."""
        connected = [await Caller.connect(self.url) for _ in range(callers)]
        asked = request(path)

        async def one_by_one(number: int) -> None:
            for _ in range(calls // callers):
                began = time.perf_counter()
                if is_new:
                    connected[number].close()
                    connected[number] = await Caller.connect(self.url)
                await connected[number].call(asked)
                self.latencies.append(time.perf_counter() - began)

        before = cpu(self.process)
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(one_by_one(number))
        self.cpu.append((cpu(self.process) - before) / calls)
        for caller in connected:
            caller.close()


async def measure() -> list[Figure]:
    """Starts everything and measures it."""
    found = []
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder, ExitStack() as stack:
        started = {}
        upstream = ""
        for role in ("upstream", "own", "aiohttp"):
            ready = Path(folder, role)
            process = stack.enter_context(
                child("-m", "benchmarks.relay", "--serve", role, "--ready-file", str(ready), "--url", upstream)
            )
            url = await written(ready, READY_S)
            upstream = upstream or url
            started[role] = (url, psutil.Process(process.pid))
        for name, path, callers in (*CASES, *STREAMS, (CONNECTING, "/v1/short", 1)):
            say(name)
            ways = {role: Measured(*started[role]) for role in ("own", "aiohttp")}
            for number in range(WARM_UP + BLOCKS):
                for way in ways.values():
                    if number == WARM_UP:
                        way.cpu, way.latencies = [], []
                    calls = BLOCK if path == "/v1/short" else STREAM_BLOCK
                    await way.block(path, callers, calls, is_new=name == CONNECTING)
            for role, way in ways.items():
                found.append(Figure(f"{name}, {role}: CPU a call", statistics.mean(way.cpu) * 1e6, "µs"))
                found.append(Figure(f"{name}, {role}: p50", statistics.median(way.latencies) * 1e6, "µs"))
    return found


def run() -> list[Figure]:
    """All figures."""
    return asyncio.run(measure())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--serve")
    parser.add_argument("--url", default="")
    parser.add_argument("--ready-file", type=Path)
    options, _ = parser.parse_known_args()
    if options.serve:
        asyncio.run(serve(options.serve, options.url, options.ready_file))
    else:
        report.main(__doc__, run)
