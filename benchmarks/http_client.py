"""CPU and latency of the proxy's HTTP client and of aiohttp's, and what the difference is of a whole proxied call.

    python -m benchmarks.http_client [--format table|json]

Both clients send the request that the proxy sends to an engine for a short call (1 kB, 64 tokens, token ids and logprobs) to the stub
engine, over kept connections, in blocks of calls that take turns; so do blocks of the same short call through a proxy. CPU of a client is
that of the benchmark's process, in which nothing else runs; CPU of a proxied call is that of all the proxy's processes. The share is the
difference between the clients over a proxied call's CPU: how much dearer a proxied call would be with aiohttp.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvloop

from benchmarks import report
from benchmarks.alone import Alone, alone
from benchmarks.cases import Asking, Case
from benchmarks.load import Caller
from benchmarks.report import Figure, say
from benchmarks.stub_engine import MODEL
from benchmarks.system import child, written
from proxy.chat import ChatRequest, Message
from proxy.engines.connection import KEEPALIVE_S
from proxy.engines.http import EngineHttp
from proxy.engines.vllm_chat import to_wire
from proxy.run import COLLECT_AFTER
from topics.types.completion import Sampling

ENGINE_S = 30.0
DEADLINE_S = 30.0
PATH = "/v1/chat/completions"
CONCURRENCY = (1, 16)
BLOCK = 160
"""Calls of one client before the other's turn; divisible by each concurrency."""
BLOCKS = 25
WARM_UP = 2
"""Blocks of each that don't count."""

Call = Callable[[], Awaitable[object]]


@dataclass
class Measured:
    """The CPU and latency of one way of calling."""

    calls: list[Call]
    """One for each caller at a time."""
    cpu_s: Callable[[], float]
    cpu: list[float] = field(default_factory=list)
    """Seconds a call, by block."""
    latencies: list[float] = field(default_factory=list)

    async def block(self) -> None:
        """Makes a block of calls."""

        async def one_by_one(call: Call) -> None:
            for _ in range(BLOCK // len(self.calls)):
                began = time.perf_counter()
                await call()
                self.latencies.append(time.perf_counter() - began)

        before = self.cpu_s()
        async with asyncio.TaskGroup() as group:
            for call in self.calls:
                group.create_task(one_by_one(call))
        self.cpu.append((self.cpu_s() - before) / BLOCK)

    def figures(self, name: str) -> Iterator[Figure]:
        """CPU and latency of a call."""
        yield Figure(f"{name}: CPU a call", statistics.median(self.cpu) * 1e6, "µs")
        yield Figure(f"{name}: p50", statistics.median(self.latencies) * 1e6, "µs")
        yield Figure(f"{name}: p99", statistics.quantiles(self.latencies, n=100)[98] * 1e6, "µs")


def _request() -> bytes:
    """A short call as the proxy asks an engine for it."""
    words = ("call 00000001, turn 000: " + "the quick brown fox jumps over the lazy dog. " * 40)[:900]
    asked = ChatRequest([Message("user", words)], model=MODEL, sampling=Sampling(max_tokens=64))
    return to_wire(asked, MODEL, "b1.0")


def _session() -> aiohttp.ClientSession:
    """aiohttp's client, as lean as its options make it."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, use_dns_cache=True)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=DEADLINE_S),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
    )


async def _measure_at(engine: str, proxy: Alone, concurrency: int) -> list[Figure]:
    body, ours = _request(), EngineHttp(engine, deadline_s=DEADLINE_S)
    proxied = [
        (await Caller.connect(proxy.url), Asking(proxy.url, Case(), lambda: proxy.key()[1]).sessions())
        for _ in range(concurrency)
    ]
    async with _session() as session:

        async def with_ours() -> None:
            await ours.post(PATH, body)

        async def with_aiohttp() -> None:
            async with session.post(
                engine + PATH, data=body, headers={"Content-Type": "application/json"}, allow_redirects=False
            ) as response:
                await response.read()

        def through(caller: Caller, requests: Iterator[bytes]) -> Call:
            return lambda: caller.call(next(requests))

        ways = {
            "own client": Measured([with_ours] * concurrency, time.process_time),
            "aiohttp's client": Measured([with_aiohttp] * concurrency, time.process_time),
            "proxied call": Measured([through(*one) for one in proxied], proxy.proxy.cpu),
        }
        for number in range(WARM_UP + BLOCKS):
            if number == WARM_UP:
                for way in ways.values():
                    way.cpu, way.latencies = [], []
            for way in ways.values():
                await way.block()
    ours.stop()
    for caller, _ in proxied:
        caller.close()
    own, other, whole = (statistics.mean(way.cpu) for way in ways.values())
    name = f"{concurrency} at once"
    return [
        *(figure for title, way in ways.items() for figure in way.figures(f"{name}, {title}")),
        Figure(f"{name}: aiohttp's CPU over the own client's", other / own, "×"),
        Figure(f"{name}: a proxied call would take more CPU with aiohttp's by", 100 * (other - own) / whole, "%"),
    ]


async def measure() -> list[Figure]:
    """Starts everything and measures it."""
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)  # as the proxy does
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        ready = Path(folder, "engine")
        with child("-m", "benchmarks.stub_engine", "--ready-file", str(ready)):
            engine = json.loads(await written(ready, ENGINE_S))["url"]
            found = []
            async with alone(engine) as proxy:
                for concurrency in CONCURRENCY:
                    say(f"{concurrency} at once")
                    found += await _measure_at(engine, proxy, concurrency)
            return found


def run() -> list[Figure]:
    """All figures."""
    return uvloop.run(measure())


if __name__ == "__main__":
    report.main(__doc__, run)
