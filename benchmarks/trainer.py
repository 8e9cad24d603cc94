"""What a trainer reads: one long trajectory decoded, and a topic of them read on one core.

    python -m benchmarks.trainer [--format table|json]

A trajectory is 50 calls, 1,500 tokens new and 500 sampled in each: 100,000 tokens in one trace, half a megabyte. Ids are drawn as text
has them, few ones often, so that they compress as text's do; logprobs hardly do. 800 of them lie on an embedded Kafka as the builder
writes them (transactions, zstd). They are read by a process that may use one core alone, every trace written out as arrays. Kafka has
the others. Bytes are those of the records, not compressed. Decoding is the best of fifty.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from benchmarks import builder, report
from benchmarks.report import Figure, say
from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from polar.embedded import Broker
from polar.trainer import TrajectoryConsumer
from topics import trajectories
from topics.contract.codec import encode
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.owner import FencedProducer, Write
from topics.log.partition import partition_of_task
from topics.types.completion import TokenDelta
from topics.types.session import Status
from topics.types.tokens import IDS, Ids, pack_ids, pack_logprobs
from topics.types.trajectory import GroupFinished, Trajectory

CALLS = 50
READ = 1500
SAMPLED = 500
TOKENS = CALLS * (READ + SAMPLED)
VOCABULARY = 150_000
SKEW = 1.2
"""Of the ids' Zipf distribution."""
GROUPS = 100
SAMPLES = 8
DISTINCT = 10
"""Trajectories that differ in more than their names; making one takes longer than writing ten."""
TRIES = 50


def run() -> list[Figure]:
    """All figures."""
    made = [conversation(seed) for seed in range(DISTINCT)]
    record = encode(made[0])
    decoding = fastest(lambda: decoded(record))
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder, Broker(Path(folder), announce=say) as broker:
        settings = Settings(kafka=broker.bootstrap, data=Path(folder), replication=1, min_insync=1)
        written = asyncio.run(write(settings, made)) / 1e6
        measured = {of_groups: elsewhere(settings, of_groups) for of_groups in (False, True)}
    return [
        Figure(f"one of {TOKENS:,} tokens: record", len(record) / 1e3, "kB"),
        Figure(f"one of {TOKENS:,} tokens: bytes to arrays", decoding * 1e3, "ms", "< 1"),
        Figure("a topic, by trajectory", written / measured[False][0], "MB/s", "≥ 150"),
        Figure("a topic, by group", written / measured[True][0], "MB/s", "≥ 150"),
        Figure("a topic, by trajectory: of a core's time", written / measured[False][1], "MB/s", "≥ 150"),
        Figure("a topic, by trajectory: tokens", GROUPS * SAMPLES * TOKENS / measured[False][0] / 1e6, "million/s"),
    ]


def conversation(seed: int) -> Trajectory:
    """A session whose calls grow, built."""
    random = np.random.default_rng(seed)
    calls = []
    for turn in range(CALLS):
        base = f"c{turn - 1}" if turn else None
        prompt = TokenDelta(pack_ids(words(random, READ)), shared=turn * (READ + SAMPLED), base=base)
        logprobs = pack_logprobs(-random.random(SAMPLED, np.float32))
        calls.append(builder.call(f"c{turn}", turn, prompt, words(random, SAMPLED), logprobs))
    return PrefixMerging().build(BuiltFrom(builder.BUILD, calls))


def words(random: np.random.Generator, count: int) -> Ids:
    """Token ids as text has them, int32 [count]."""
    return np.minimum(random.zipf(SKEW, count), VOCABULARY).astype(IDS)


def decoded(record: bytes) -> int:
    """A record to arrays; how many tokens they hold."""
    trajectory = trajectories.CODEC.decode(record)
    assert isinstance(trajectory, Trajectory)
    return sum(len(trace.token_ids) for trace in trajectory.expanded())


def fastest(work: Callable[[], object]) -> float:
    """Seconds, the best of `TRIES`."""
    times = []
    for _ in range(TRIES):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


async def write(settings: Settings, made: list[Trajectory]) -> int:
    """All groups, a transaction each; the bytes of the trajectories."""
    await admin.apply(settings, [trajectories.TOPIC], embedded=True)
    name, count = trajectories.TOPIC.full_name(settings.namespace), trajectories.TOPIC.embedded_partitions
    producers = [FencedProducer(settings, f"builder.{number}") for number in range(count)]
    for producer in producers:
        await producer.start()
    written = 0
    say(f"writing {GROUPS * SAMPLES} trajectories")
    for number in range(GROUPS):
        task = f"task-{number}"
        partition = partition_of_task(task, count)
        samples = [sample(made[(number + index) % DISTINCT], task, index) for index in range(SAMPLES)]
        ids = [one.session_id for one in samples]
        end = GroupFinished(task, SAMPLES, ids, [1.0] * SAMPLES, [Status.COMPLETED] * SAMPLES)
        values = [encode(record) for record in (*samples, end)]
        written += sum(map(len, values[:-1]))
        await producers[partition].begin()
        await producers[partition].write([Write(name, partition, task.encode(), value) for value in values])
        await producers[partition].commit()
    for producer in producers:
        await producer.stop()
    return written


def sample(made: Trajectory, task: str, index: int) -> Trajectory:
    """The same tokens under a name of their own."""
    return msgspec.structs.replace(
        made, session_id=f"{task}.{index}", task_id=task, sample_index=index, num_samples=SAMPLES
    )


def elsewhere(settings: Settings, of_groups: bool) -> tuple[float, float]:
    """`read` in a process of its own, on one core: seconds on the clock, and of CPU."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=use_one_core) as other:
        return other.submit(read, settings, of_groups).result()


def use_one_core() -> None:
    """The last that this process may use, from now on."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def read(settings: Settings, of_groups: bool) -> tuple[float, float]:
    """Read the topic to its end and write out every trace, as a trainer does."""
    with TrajectoryConsumer(settings=settings, timeout_s=0) as consumer:
        found = (one for group in consumer.groups() for one in group.trajectories) if of_groups else iter(consumer)
        began, used = time.perf_counter(), time.process_time()
        took = spent = 0.0
        tokens = 0
        for trajectory in found:
            tokens += sum(len(trace.token_ids) for trace in trajectory.expanded())
            took, spent = time.perf_counter() - began, time.process_time() - used
    assert tokens == GROUPS * SAMPLES * TOKENS
    return took, spent


if __name__ == "__main__":
    report.main(__doc__, run)
