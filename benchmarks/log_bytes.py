"""Bytes on the log for a session of 50 turns that grow by 400 tokens each.

    python -m benchmarks.log_bytes [--format table|json]

A `shell` harness talks through `polar up`'s proxy with the scripted engine: of each turn's 400 tokens 100 are sampled, the rest is what a
tool might have said (Python's own source). Between proxy and engine stands a wiretap that keeps every request and response body as it
passed: that is the raw JSON, each call with its full messages, `prompt_token_ids`, `token_ids` and logprobs. On the other side stand the
segments of the broker's own disk, control records, batch headers and transaction markers included, indexes not. For fairness the raw
JSON is also compressed call by call as a producer would.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from aiokafka.codec import zstd_encode

from benchmarks import report
from benchmarks.report import Figure
from benchmarks.system import child, up, written
from polar.scripted.tokenizer import Tokenizer
from topics import completions, events, sessions, trajectories

TURNS = 50
GROWTH = 400
"""Tokens a turn, what is sampled included."""
SAMPLED = 100
TEMPLATE = 7
"""Tokens that the chat template puts around a turn's two messages, beside the sampled end of turn."""
PROMPT_LIMIT = 16 * 2**20


@dataclass
class Wiretap:
    """Bodies of chat calls as they passed: (request, response)."""

    engine: str
    bodies: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        """Hand a request on to the engine and its answer back, unchanged."""
        asked = await request.read()
        kind = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, self.engine + request.path, data=asked or None, headers=kind) as response,
        ):
            told = await response.read()
        if request.path.endswith("/chat/completions"):
            self.bodies.append((asked, told))
        return web.Response(body=told, status=response.status, headers=kind)


def texts(tokens: int, count: int) -> list[str]:
    """So many texts of so many tokens, from Python's own source; the same for the same Python."""
    tokenizer = Tokenizer()
    folder = Path(json.__file__).parents[1]
    source = "\n".join(
        (folder / name).read_text() for name in ("argparse.py", "ast.py", "dataclasses.py", "pathlib.py")
    )
    ids = tokenizer.encode(source)
    if len(ids) < tokens * count:
        raise SystemExit(f"this Python's source has {len(ids)} tokens; {tokens * count} are needed")
    return [tokenizer.decode(ids[at : at + tokens]) for at in range(0, tokens * count, tokens)]


async def measure() -> list[Figure]:
    """Runs the session and counts."""
    said = texts(SAMPLED - 1, TURNS)
    read = texts(GROWTH - SAMPLED - TEMPLATE, 2 * TURNS)[TURNS:]
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        script = Path(folder, "script.json")
        turns = [{"text": text} for text in said]
        script.write_text(json.dumps({"name": "agent", "match": "", "variants": [{"name": "all", "turns": turns}]}))
        heard = Path(folder, "heard.json")
        heard.write_text(json.dumps(read))
        ready = Path(folder, "engine")
        with child("-m", "polar.scripted", "--scripts", str(script), "--ready-file", str(ready)):
            engine = json.loads(await written(ready, 30))["url"]
            async with tapped(engine) as (url, tap), up("--engine", url) as system:
                agent = Path(__file__).with_name("agent.py")
                await system.run(
                    {
                        "task_id": "growing",
                        "instruction": "talk on",
                        "num_samples": 1,
                        "agent": {"harness": "shell", "custom_shell": {"command": f"{sys.executable} {agent} {heard}"}},
                    }
                )
                stored = {
                    topic.name: segments(system.data, topic.full_name(system.settings.namespace))
                    for topic in (completions.TOPIC, trajectories.TOPIC, events.TOPIC, sessions.TOPIC)
                }
    return figures(tap.bodies, stored)


def figures(bodies: list[tuple[bytes, bytes]], stored: dict[str, int]) -> list[Figure]:
    """From what was counted. SystemExit where the session wasn't what it should be."""
    answers = [json.loads(response) for _, response in bodies]
    prompts = [len(answer["prompt_token_ids"]) for answer in answers]
    growth = (prompts[-1] - prompts[0]) / (len(prompts) - 1)
    if len(bodies) != TURNS or abs(growth - GROWTH) > GROWTH / 50:
        raise SystemExit(f"{len(bodies)} calls that grew by {growth:.1f} tokens; {TURNS} and {GROWTH} were meant")
    raw = sum(len(request) + len(response) for request, response in bodies)
    raw_zstd = sum(len(zstd_encode(request + response)) for request, response in bodies)
    log = stored["completions"]
    return [
        Figure("calls", len(bodies), ""),
        Figure("prompt growth", growth, "tokens a turn"),
        Figure("sampled", sum(len(answer["choices"][0]["token_ids"]) for answer in answers), "tokens"),
        Figure("last prompt", prompts[-1], "tokens"),
        Figure("raw JSON", raw / 1e3, "kB"),
        Figure("raw JSON, each call zstd", raw_zstd / 1e3, "kB"),
        *(Figure(f"on the log: {topic}", size / 1e3, "kB") for topic, size in stored.items()),
        Figure("raw JSON / completions", raw / log, "times", "≥ 20"),
        Figure("raw JSON, each call zstd / completions", raw_zstd / log, "times"),
        Figure("raw JSON / all four topics", raw / sum(stored.values()), "times"),
    ]


@asynccontextmanager
async def tapped(engine: str) -> AsyncIterator[tuple[str, Wiretap]]:
    """A wiretap before the engine, and its URL."""
    tap = Wiretap(engine)
    app = web.Application(client_max_size=PROMPT_LIMIT)
    app.router.add_route("*", "/{path:.*}", tap.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", tap
    finally:
        await runner.cleanup()


def segments(data: Path, topic: str) -> int:
    """Bytes of a topic's segments on the broker's disk, all partitions."""
    return sum(file.stat().st_size for file in (data / "kafka" / "data").glob(f"{topic}-*/*.log"))


def run() -> list[Figure]:
    """All figures."""
    return asyncio.run(measure())


if __name__ == "__main__":
    report.main(__doc__, run)
