"""What the proxy adds to a call: latency over the engine alone, and CPU, at concurrency 1, with every call on a real Kafka.

    python benchmarks/proxy.py [--calls 500] [--format table|json]

Engine, proxy and broker are processes of their own, in a temporary folder; direct and proxied calls alternate in one run, over
kept connections, so that both see the same machine. Asked directly the engine does the same work: it is asked for token ids and
logprobs, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvloop

from polar.embedded import Broker
from polar.keys import KeyClaims, Signer, ensure_keys_file
from polar.settings import Settings
from topics import admin, catalogue

MODEL = "polar-scripted"
CALLS_A_CLAIM = 25
"""A session's usual length: its state is dropped with it."""
WARM_UP = 50
SERVE = """
import sys, pathlib, uvloop
from polar.settings import Settings
from proxy.run import serve
folder, kafka, engine = sys.argv[1:]
ready = lambda url, _: pathlib.Path(folder, "proxy-ready").write_text(url)
settings = Settings(data=folder, kafka=kafka, namespace="bench")
uvloop.run(serve(settings, host="127.0.0.1", port=0, control_host="127.0.0.1", control_port=0, engine_url=engine,
    model="polar-scripted", ready=ready))
"""


@dataclass(frozen=True)
class Case:
    """One kind of call."""

    name: str
    prompt_bytes: int
    stream: bool


CASES = (
    Case("1 kB", 1_000, stream=False),
    Case("1 kB, stream", 1_000, stream=True),
    Case("60 kB", 60_000, stream=False),
)


@dataclass(frozen=True)
class Result:
    """Milliseconds."""

    case: str
    calls: int
    engine_p50: float
    proxied_p50: float
    added_p50: float
    added_p99: float
    """Of the proxied calls' 99th percentile over the engine's median."""
    cpu_per_call: float
    """Of the proxy process, all threads."""


def main() -> None:
    """Runs all cases and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--format", choices=["table", "json"], default="table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder, Broker(Path(folder), announce=say) as broker:
        results = uvloop.run(bench(Path(folder), broker.bootstrap, options.calls))
    if options.format == "json":
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    print(
        f"{'case':14} {'calls':>6} {'engine p50':>11} {'proxied p50':>12} {'added p50':>10} {'added p99':>10} {'CPU/call':>9}  (ms)"
    )
    for r in results:
        print(
            f"{r.case:14} {r.calls:6} {r.engine_p50:11.2f} {r.proxied_p50:12.2f} {r.added_p50:10.2f} {r.added_p99:10.2f} "
            f"{r.cpu_per_call:9.2f}"
        )


def say(line: str) -> None:
    """To standard error, so that JSON stays JSON."""
    print(line, file=sys.stderr)


async def bench(folder: Path, kafka: str, calls: int) -> list[Result]:
    """Starts engine and proxy and measures every case."""
    settings = Settings(data=folder, kafka=kafka, namespace="bench")
    ensure_keys_file(settings.keys_path)
    signer = Signer.from_file(settings.keys_path)
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    engine_ready = folder / "engine-ready"
    engine_command = ["-m", "polar.scripted", "--model", MODEL, "--ready-file", str(engine_ready)]
    with child(engine_command):
        engine = json.loads(await written(engine_ready))["url"]
        with child(["-c", SERVE, str(folder), kafka, engine]) as proxy_process:
            proxy = await written(folder / "proxy-ready")
            async with aiohttp.ClientSession() as session:
                return [
                    await measure(session, case, engine, proxy, signer, psutil.Process(proxy_process.pid), calls)
                    for case in CASES
                ]


async def measure(
    session: aiohttp.ClientSession,
    case: Case,
    engine: str,
    proxy: str,
    signer: Signer,
    process: psutil.Process,
    calls: int,
) -> Result:
    """Alternates direct and proxied calls; prompts differ, so that no cache answers."""
    direct: list[float] = []
    proxied: list[float] = []
    busy = 0.0
    for number in range(WARM_UP + calls):
        if number == WARM_UP:
            busy = cpu(process)
            direct.clear()
            proxied.clear()
        key = signer.mint(claims(case, number // CALLS_A_CLAIM))
        body = request(case, number)
        direct.append(await timed(session, engine, body, "none"))
        proxied.append(await timed(session, proxy, body, key))
    spent = cpu(process) - busy
    engine_p50, proxied_p50 = statistics.median(direct), statistics.median(proxied)
    p99 = statistics.quantiles(proxied, n=100)[98]
    return Result(
        case.name,
        calls,
        engine_p50 * 1e3,
        proxied_p50 * 1e3,
        (proxied_p50 - engine_p50) * 1e3,
        (p99 - engine_p50) * 1e3,
        spent / calls * 1e3,
    )


def claims(case: Case, number: int) -> KeyClaims:
    """A session's key."""
    now = int(time.time())
    name = f"b{case.prompt_bytes}{'s' if case.stream else ''}.{number}"
    return KeyClaims(name, 1, f"claim-{name}", expires_at=now + 3600, issued_at=now + 1)


def request(case: Case, number: int) -> bytes:
    """A chat request whose body has about the case's size, in messages of 1 kB."""
    text = (f"{number} the quick brown fox jumps over the lazy dog. " * 40)[:900]
    messages = [{"role": "user", "content": text}] * max(1, case.prompt_bytes // 1_000)
    body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 64, "stream": case.stream}
    body |= {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
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


def cpu(process: psutil.Process) -> float:
    """Seconds of CPU that a process has used."""
    times = process.cpu_times()
    return times.user + times.system


async def written(file: Path) -> str:
    """The text of a file that another process writes when it is ready."""
    for _ in range(1200):
        if file.exists() and (text := file.read_text()):
            return text
        await asyncio.sleep(0.05)
    raise SystemExit(f"{file.name} wasn't there within 60 s")


@contextmanager
def child(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process, ended by SIGTERM."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=sys.stderr)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    main()
