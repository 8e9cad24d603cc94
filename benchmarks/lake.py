"""From the log into the lake: calls a minute on one core, bytes a token, and how soon a row can be read.

    python -m benchmarks.lake [--format table|json]

A log of 5,000 sessions of 20 turns, each turn a call of 70 tokens read and 30 sampled (the last gets no tool's words): 100,000 calls,
10 million tokens. Tokens and words are those of Python's own source, logprobs are drawn; calls are deltas, as the proxy writes them, and
each session has its facts and its trajectory. The writer, `polar worker analytics`, starts on the full log and has one core for itself;
broker and benchmark have the others. Then 200 calls a second come, and each row's way is timed: from Kafka's time of the record to the
moment when the manifest that holds it can be read. At last the lake is asked, the writer gone: each time anew, as a reader that comes.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import psutil

from analytics.lake.manifest import Lake, Manifest
from analytics.queries import query
from benchmarks import report
from benchmarks.log_bytes import segments
from benchmarks.report import Figure, say
from benchmarks.system import child, cpu
from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from polar.embedded import Broker
from polar.scripted.tokenizer import Tokenizer
from topics import completions, events, trajectories
from topics.calls.delta import links
from topics.completions import Build
from topics.contract import catalogue
from topics.contract.codec import encode
from topics.contract.topic import Topic
from topics.environment.settings import Settings, write_env_file
from topics.events import RunFinished, TaskSubmitted
from topics.log import admin, kafka
from topics.log.partition import partition_of_task
from topics.types.completion import CallOutcome, Completion, MessageDelta, Sampling, TokenDelta
from topics.types.session import Plan, Status
from topics.types.tokens import IDS, Ids, pack_ids, pack_logprobs

SESSIONS = 5_000
TURNS = 20
READ = 70
SAMPLED = 30
CALLS = SESSIONS * TURNS
TOKENS = CALLS * (READ + SAMPLED)
RATE = 200
"""Calls a second while freshness is measured."""
FRESH_S = 20
WAIT_S = 600.0
PLAN = Plan(
    "default", 0, 3, 600.0, 3600.0, 600.0, "pi", "prefix_merging", b"{}", None, "train", b'{"user": {"set": "a"}}'
)
SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, repetition_penalty=1.0)

Sent = tuple[Topic, str, str, bytes]
"""Topic, task id, key, value."""


def words(tokenizer: Tokenizer) -> Ids:
    """The ids of Python's own source, so much that a session rarely says what another said."""
    folder = Path(json.__file__).parents[1]
    files = sorted(file for file in folder.rglob("*.py") if not {"test", "tests", "site-packages"} & set(file.parts))
    said = [np.array(tokenizer.encode(file.read_text(errors="replace")), IDS) for file in files]
    return np.concatenate(said)


class Load:
    """Sessions that grow turn by turn."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer()
        self._words = words(self._tokenizer)
        self._random = np.random.default_rng(0)
        self._conversation = np.empty(0, IDS)
        """Tokens of the session so far."""

    def session(self, number: int) -> Iterator[Sent]:
        """All records of a task of one sample, in log order."""
        task_id, session_id = f"task-{number:06}", f"task-{number:06}.0"
        submitted = TaskSubmitted(f"s{number}", task_id, 1, "0" * 64, PLAN, b'{"task_id": "it"}')
        yield events.TOPIC, task_id, task_id, encode(submitted)
        calls = []
        for turn in range(TURNS):
            calls.append(self.call(session_id, turn))
            yield completions.TOPIC, task_id, session_id, encode(calls[-1])
        finished = RunFinished(f"f{number}", session_id, 1, f"claim-{number}", Status.COMPLETED, 0, duration_ms=60_000)
        yield events.TOPIC, task_id, session_id, encode(finished)
        build = Build(
            session_id, task_id, 0, 1, 1, f"claim-{number}", Status.COMPLETED, "prefix_merging", b"{}", "pi", reward=1.0
        )
        yield trajectories.TOPIC, task_id, session_id, encode(PrefixMerging().build(BuiltFrom(build, calls)))

    def call(self, session_id: str, turn: int) -> Completion:
        """Turn by turn: what a tool said, and the answer; the turns before are shared."""
        read, sampled = self._said(READ), self._said(SAMPLED)
        prompt = np.concatenate((self._conversation if turn else self._conversation[:0], read))
        self._conversation = np.concatenate((prompt, sampled))
        now = int(time.time() * 1000)
        base = f"{session_id}-{turn - 1}" if turn else None
        return Completion(
            f"{session_id}-{turn}",
            session_id,
            1,
            f"claim-{session_id}",
            CallOutcome.ANSWERED,
            "openai_chat",
            "default",
            now,
            now + 1_000,
            TokenDelta(pack_ids(read), turn * (READ + SAMPLED), base, [b"", *links(prompt)][-1]),
            MessageDelta(json.dumps([{"role": "tool", "content": self._text(read)}]).encode(), 2 * turn, base),
            sampled=pack_ids(sampled),
            logprobs=pack_logprobs(-self._random.gamma(0.3, 1.0, SAMPLED).astype(np.float32)),
            answer=json.dumps({"role": "assistant", "content": self._text(sampled)}).encode(),
            finish_reason="stop",
            model_requested="scripted",
            model_served="scripted",
            policy_version=turn // 10,
            sampling=SAMPLING,
            stream=True,
        )

    def _said(self, tokens: int) -> Ids:
        start = int(self._random.integers(0, len(self._words) - tokens))
        return self._words[start : start + tokens]

    def _text(self, ids: Ids) -> str:
        return self._tokenizer.decode(ids.tolist())


async def send(producer: kafka.Producer, settings: Settings, records: Iterator[Sent]) -> None:
    """Put records on the log, acknowledged."""
    pending = []
    for topic, task_id, key, value in records:
        name, partition = topic.full_name(settings.namespace), partition_of_task(task_id, topic.embedded_partitions)
        pending.append(await producer.send(name, value, key=key.encode(), partition=partition))
    await asyncio.gather(*pending)


async def held(lake: Lake, table: str, rows: int) -> Manifest:
    """The manifest as soon as a table has so many rows. SystemExit where it takes too long."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        newest = lake.newest()
        if sum(file.rows for file in newest.files.get(table, ())) >= rows:
            return newest
        await asyncio.sleep(0.02)
    raise SystemExit(f"the lake hasn't {rows} {table} after {WAIT_S:.0f} s")


async def measure() -> list[Figure]:
    """Fills a log, then starts the writer on it."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        # The broker is started with our cores.
        os.sched_setaffinity(0, cores[1:] or cores)
        try:
            with Broker(Path(folder), announce=say) as broker:
                settings = Settings(kafka=broker.bootstrap, data=Path(folder), replication=1, min_insync=1)
                await admin.apply(settings, catalogue.FIXED, embedded=True)
                write_env_file(Path(folder, "polar.env"), {"POLAR_KAFKA": broker.bootstrap, "POLAR_NAMESPACE": "polar"})
                return await ingest(settings, cores[0])
        finally:
            os.sched_setaffinity(0, cores)


async def ingest(settings: Settings, core: int) -> list[Figure]:
    """All figures, on a broker with empty topics."""
    producer = kafka.producer(settings, max_bytes=completions.TOPIC.max_bytes)
    await producer.start()
    try:
        say(f"writing {CALLS} calls to the log")
        load = Load()
        for number in range(SESSIONS):
            await send(producer, settings, load.session(number))
        began = time.monotonic()
        with child("-m", "polar.cli", "worker", "analytics", "--data", str(settings.data)) as writer:
            os.sched_setaffinity(writer.pid, {core})
            lake = Lake(settings.lake_folder)
            await held(lake, "completions", 1)
            first = time.monotonic()
            rows = sum(file.rows for file in lake.newest().files["completions"])
            await held(lake, "trajectories", SESSIONS)
            await held(lake, "completions", CALLS)
            took, whole = time.monotonic() - first, time.monotonic() - began
            process = psutil.Process(writer.pid)
            used, memory = cpu(process), process.memory_info().rss
            fresh = await freshness(producer, settings, load, lake)
            newest = lake.newest()
        asked = asking(settings)
        log = segments(settings.data, completions.TOPIC.full_name(settings.namespace))
    finally:
        await kafka.stop(producer, 5)
    sizes = {table: sum(file.bytes for file in files) for table, files in newest.files.items()}
    tokens = TOKENS + len(fresh) * (READ + SAMPLED)
    return [
        Figure("calls", CALLS, ""),
        Figure("tokens", TOKENS, ""),
        Figure("from the writer's start to all in the lake", whole, "s"),
        Figure("of that until the first rows", first - began, "s"),
        Figure("ingested", (CALLS - rows) / took * 60, "calls/min", "≥ 60,000"),
        Figure("ingested, start included", CALLS / whole * 60, "calls/min"),
        Figure("CPU, start and merging included", used / CALLS * 1e6, "µs a call"),
        Figure("memory, writer's process", memory / 1e6, "MB"),
        *(Figure(f"{name}, packed alone", size, "bytes a token") for name, size in columns(lake, newest).items()),
        Figure("lake: completions", sizes["completions"] / tokens, "bytes a token"),
        Figure("lake: all tables", sum(sizes.values()) / tokens, "bytes a token"),
        Figure("log: completions", log / tokens, "bytes a token"),
        Figure("files", sum(map(len, newest.files.values())), ""),
        Figure("freshness at 200 calls/s, median", float(np.median(fresh)), "s"),
        Figure("freshness at 200 calls/s, worst", max(fresh), "s", "≤ 5"),
        *asked,
    ]


QUESTIONS = {
    "all calls by harness": "SELECT harness, count(*), sum(sampled_tokens), avg(latency_ms) FROM calls GROUP BY harness",
    "one session's calls": f"FROM calls WHERE session_id = 'task-{SESSIONS // 2:06}.0' ORDER BY received_at",
    "all groups": "SELECT count(*), avg(mean_reward) FROM groups",
}
TIMES = 5


def asking(settings: Settings) -> list[Figure]:
    """Seconds from nothing to the answer, views included; the median of several."""
    found: list[Figure] = []
    for name, sql in QUESTIONS.items():
        took = []
        for _ in range(TIMES):
            began = time.perf_counter()
            with query.connect(settings) as reader:
                assert list(reader.ask(sql).rows())
            took.append(time.perf_counter() - began)
        wanted = "< 0.5" if not found else ""
        found.append(Figure(f"asking: {name}", float(np.median(took)), "s", wanted))
    took = []
    for _ in range(TIMES):
        began = time.perf_counter()
        with child(
            "-m", "polar.cli", "sql", QUESTIONS["all calls by harness"], "--data", str(settings.data)
        ) as process:
            assert process.wait() == 0
        took.append(time.perf_counter() - began)
    return [*found, Figure("asking: `polar sql`, the whole process", float(np.median(took)), "s")]


def columns(lake: Lake, manifest: Manifest) -> dict[str, float]:
    """Bytes a token that the packed columns of the calls take, and the text."""
    paths = [str(lake.path("completions", file)) for file in manifest.files["completions"]]
    asked = "select path_in_schema, sum(total_compressed_size) / sum(num_values) from parquet_metadata(?) group by all"
    with duckdb.connect() as connection:
        found = dict(connection.execute(asked, [paths]).fetchall())
    return {name: found[f"{name}, list, element"] for name in ("prompt_rest", "sampled", "logprobs")}


async def freshness(producer: kafka.Producer, settings: Settings, load: Load, lake: Lake) -> list[float]:
    """Seconds that each call took from Kafka's time of it until a manifest held it, at a steady rate."""
    say(f"{RATE} calls a second for {FRESH_S} s")
    known = {file.name for file in lake.newest().files["completions"]}
    ages: dict[str, float] = {}

    async def come() -> None:
        for number in range(FRESH_S * RATE // TURNS):
            await asyncio.sleep(TURNS / RATE)
            await send(producer, settings, load.session(SESSIONS + number))

    coming = asyncio.create_task(come(), name="come")
    try:
        while len(ages) < FRESH_S * RATE:
            newest, seen = lake.newest(), time.time()
            for file in newest.files["completions"]:
                if file.name not in known:
                    known.add(file.name)
                    for call_id, logged_at in await asyncio.to_thread(logged, lake.path("completions", file)):
                        # A merged file brings rows of older ones again.
                        ages.setdefault(call_id, seen - logged_at)
            await asyncio.sleep(0.02)
            if coming.done():
                coming.result()
    finally:
        coming.cancel()
    return list(ages.values())


def logged(path: Path) -> list[tuple[str, float]]:
    """Calls of the sessions that freshness is measured with, and Kafka's time of them."""
    asked = "select call_id, epoch_ms(logged_at) / 1000 from read_parquet(?) where task_id >= ?"
    with duckdb.connect() as connection:
        return connection.execute(asked, [str(path), f"task-{SESSIONS:06}"]).fetchall()


def run() -> list[Figure]:
    """All figures."""
    return asyncio.run(measure())


if __name__ == "__main__":
    report.main(__doc__, run)
