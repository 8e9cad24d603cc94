"""What the proxy adds to a call at concurrency 1: latency over the engine alone, and CPU.

    python -m benchmarks.proxy [--format table|json]

The proxy of a `polar up`, every call acknowledged by its Kafka, before a scripted engine, which takes a millisecond or two itself. Direct
and proxied calls alternate in one run, over kept connections, so that both see the same machine; no two prompts are alike, so nothing is
answered from a cache and every prompt goes to the log in full. The engine is asked plainly when it is asked directly: token ids and
logprobs are part of what capture costs. Added p50 is between the two medians; added p99 is of the proxied calls' 99th percentile over the
engine's median, a stalled machine included. CPU is the proxy process's, all threads.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import report
from benchmarks.report import Figure
from benchmarks.system import System, child, up, written
from polar.keys import KeyClaims, Signer

MODEL = "polar-scripted"
CALLS = 500
CALLS_A_CLAIM = 25
"""A session's usual length: its state is dropped with it."""
WARM_UP = 50


@dataclass(frozen=True)
class Case:
    """One kind of call."""

    name: str
    prompt_bytes: int
    stream: bool


CASES = (
    Case("1 kB", 1_000, stream=False),
    Case("1 kB, streamed", 1_000, stream=True),
    Case("60 kB", 60_000, stream=False),
)


async def measure() -> list[Figure]:
    """Starts everything and measures every case."""
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        ready = Path(folder, "engine")
        with child("-m", "polar.scripted", "--model", MODEL, "--ready-file", str(ready)):
            engine = json.loads(await written(ready, 30))["url"]
            async with up("--engine", engine) as system, aiohttp.ClientSession() as session:
                return [figure for case in CASES for figure in await compare(session, case, engine, system)]


async def compare(session: aiohttp.ClientSession, case: Case, engine: str, system: System) -> list[Figure]:
    """Alternates direct and proxied calls of a kind."""
    signer = Signer.from_file(system.settings.keys_path)
    proxy = system.settings.proxy_url
    assert proxy is not None, "polar up has one"
    direct: list[float] = []
    proxied: list[float] = []
    busy = 0.0
    for number in range(WARM_UP + CALLS):
        if number == WARM_UP:
            busy = system.cpu()["proxy"]
        key = signer.mint(claims(case, number // CALLS_A_CLAIM))
        direct.append(await timed(session, engine, request(case, 2 * number), "none"))
        proxied.append(await timed(session, proxy, request(case, 2 * number + 1), key))
    spent = system.cpu()["proxy"] - busy
    alone, through = statistics.median(direct[WARM_UP:]), statistics.median(proxied[WARM_UP:])
    late = statistics.quantiles(proxied[WARM_UP:], n=100)[98]
    return [
        Figure(f"{case.name}: engine alone, p50", alone * 1e3, "ms"),
        Figure(f"{case.name}: added, p50", (through - alone) * 1e3, "ms"),
        Figure(f"{case.name}: added, p99", (late - alone) * 1e3, "ms"),
        Figure(f"{case.name}: CPU a call", spent / CALLS * 1e3, "ms"),
    ]


def claims(case: Case, number: int) -> KeyClaims:
    """A session's key."""
    now = int(time.time())
    task = f"b{case.prompt_bytes}{'s' if case.stream else ''}"
    # Issued a second ahead, it is newer than the proxy, which then needn't read the session back from the log.
    return KeyClaims(f"{task}.{number}", 1, f"claim-{task}.{number}", expires_at=now + 3600, issued_at=now + 1)


def request(case: Case, number: int) -> bytes:
    """A chat request whose body has about the case's size, in messages of 1 kB."""
    text = (f"{number} the quick brown fox jumps over the lazy dog. " * 40)[:900]
    messages = [{"role": "user", "content": text}] * (case.prompt_bytes // 1_000)
    body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 64, "stream": case.stream}
    return json.dumps(body).encode()


async def timed(session: aiohttp.ClientSession, url: str, body: bytes, key: str) -> float:
    """Seconds from the request to the last byte of its answer."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    began = time.perf_counter()
    async with session.post(url + "/v1/chat/completions", data=body, headers=headers) as response:
        told = await response.read()
    took = time.perf_counter() - began
    if response.status != 200:
        raise SystemExit(f"{url} answered {response.status}: {told[:300]!r}")
    return took


def run() -> list[Figure]:
    """All figures."""
    return asyncio.run(measure())


if __name__ == "__main__":
    report.main(__doc__, run)
