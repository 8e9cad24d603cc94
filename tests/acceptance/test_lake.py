"""The lake under kills, rebalances and readers: writers and readers are processes, as their commands start them. Of the seeds each second
one has its lake in a bucket of a real S3 server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import operator
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import obstore
import pytest

from analytics.lake import places
from analytics.lake.manifest import Lake, Manifest
from analytics.lake.store import FolderStore
from tests.analytics.loading import Sent, arrived, on_the_log, send, tasks
from tests.s3_server import BUCKET, s3_server
from tests.waiting import eventually
from topics.contract import catalogue
from topics.environment import s3
from topics.environment.s3 import S3Address
from topics.environment.settings import Settings, write_env_file
from topics.log import admin

SEEDS = int(os.environ.get("POLAR_LAKE_SEEDS", "2"))
AT_ONCE = 4
KILLS = 3
READERS = 8
READER = Path(__file__).with_name("lake_reader.py")
FRESH_S = 5.0
"""From a record on the log to a manifest with its rows. The writer's own waits add up to less than 2 s: 1 s until a flush is due
(`FLUSH_S`), 0.5 s for a fetch, 0.2 s for a poll. The readers take only the processor time that the writer leaves (`lake_reader.py`)."""
DEADLINE_S = 90.0
Process = asyncio.subprocess.Process


async def system(kafka: str, namespace: str, data: Path, lake: str | None = None) -> Settings:
    """Topics on the suite's broker, and a data folder that names it."""
    data.mkdir()
    lake = lake or str(data / "lake")
    settings = Settings(kafka=kafka, namespace=namespace, data=data, lake=lake, replication=1, min_insync=1)
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    write_env_file(data / "polar.env", {"POLAR_KAFKA": kafka, "POLAR_NAMESPACE": namespace, "POLAR_LAKE": lake})
    return settings


async def started(settings: Settings, *arguments: str, stdout: str = "output") -> Process:
    """A Python process; what it says goes to files of the data folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POLAR_")}
    with (settings.data / "output").open("ab") as errors, (settings.data / stdout).open("ab") as said:
        return await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env=environment, stdout=said, stderr=errors
        )


async def writer(settings: Settings) -> Process:
    return await started(settings, "-m", "polar.cli", "worker", "analytics", "--data", str(settings.data))


@asynccontextmanager
async def writers(settings: Settings, count: int) -> AsyncIterator[list[Process]]:
    """So many writers; who is in the list at the end is stopped, and has to end well."""
    running = [await writer(settings) for _ in range(count)]
    try:
        yield running
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        codes = await asyncio.gather(*(asyncio.wait_for(process.wait(), DEADLINE_S) for process in running))
    assert codes == [0] * len(running), (settings.data / "output").read_text()


async def come(settings: Settings, seed: int, over: asyncio.Event) -> None:
    """Ten tasks every half second, until `over`."""
    number = 0
    while not over.is_set():
        await send(settings, *tasks(10, seed + number, start=number))
        number += 10
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), 0.5)


async def killed_at_random(settings: Settings, seed: int) -> None:
    """Half of the kills come while a flush is on the way, half between flushes."""
    chance = random.Random(seed)
    lake = places.lake(settings)
    over = asyncio.Event()
    coming = asyncio.create_task(come(settings, seed, over))
    async with writers(settings, 1) as running:
        for _ in range(KILLS):
            await eventually(partial(has_more, lake, files_of(lake)), DEADLINE_S, every_s=0.005)
            await asyncio.sleep(chance.random() * chance.choice([0.05, 2]))
            running[0].kill()
            await running[0].wait()
            running[0] = await writer(settings)
        over.set()
        await coming
        await arrived(settings, await on_the_log(settings, None), DEADLINE_S)


def files_of(lake: Lake) -> set[str]:
    """All data files, those that no manifest names included."""
    if isinstance(lake.store, FolderStore):
        return {path.name for path in lake.folder.glob("*/*.parquet")}
    pages = obstore.list(s3.connect(S3Address.parse(lake.store.place.partition(" ")[0])))
    return {path for page in pages for entry in page if (path := entry["path"]).endswith(".parquet")}


def has_more(lake: Lake, than: set[str]) -> bool:
    return not files_of(lake) <= than


@pytest.mark.timeout(600)
async def test_a_writer_that_is_killed_at_any_moment_loses_and_doubles_no_row(
    kafka: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def one(seed: int) -> None:
        async with free:
            name = f"{namespace}-{seed}"
            lake = f"s3://{BUCKET}/lakes" if seed % 2 else None
            await killed_at_random(await system(kafka, name, tmp_path / name, lake), seed)

    with s3_server(tmp_path / "s3") as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        async with asyncio.TaskGroup() as running:
            for seed in range(SEEDS):
                running.create_task(one(seed))


async def test_two_writers_share_the_log_and_one_that_slept_writes_nothing_twice(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    """The sleeper wakes when its partitions are another's, with rows of them in its memory."""
    settings = await system(kafka, namespace, tmp_path / "data")
    lake = Lake(settings.lake_folder)
    over = asyncio.Event()
    coming = asyncio.create_task(come(settings, 0, over))
    async with writers(settings, 2) as running:
        await eventually(lambda: writers_of(lake) == 2, DEADLINE_S)
        running[0].send_signal(signal.SIGSTOP)
        seen = dict(lake.newest().offsets["completions"])
        await eventually(
            lambda: all(lake.newest().offsets["completions"][each] > seen[each] for each in seen), DEADLINE_S
        )
        running[0].send_signal(signal.SIGCONT)
        over.set()
        await coming
        await arrived(settings, await on_the_log(settings, None), DEADLINE_S)


def writers_of(lake: Lake) -> int:
    """How many writers have files in the lake."""
    return len({file.name.partition("-")[0] for made in lake.newest().files.values() for file in made})


async def test_a_record_is_in_the_lake_within_5_s_and_a_query_sees_all_that_was_committed_before_it(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    settings = await system(kafka, namespace, tmp_path / "data")
    lake, stop = Lake(settings.lake_folder), tmp_path / "stop"
    load = tasks(80, 0)
    written: list[tuple[float, list[int]]] = []
    """When which counts of events, calls and trajectories were on the log."""
    async with writers(settings, 1):
        # How long processes take to start isn't what is timed.
        await send(settings, *load[:20])
        await eventually(lambda: lake.newest().version, DEADLINE_S)
        said = [settings.data / f"reader-{number}" for number in range(READERS)]
        readers = [
            await started(settings, str(READER), str(settings.data), str(stop), stdout=each.name) for each in said
        ]
        await eventually(lambda: all(each.stat().st_size for each in said), DEADLINE_S)
        for at in range(20, len(load), 20):
            await send(settings, *load[at : at + 20])
            written.append((time.time(), counts(load[: at + 20])))
            await asyncio.sleep(0.25)
        await arrived(settings, await on_the_log(settings, None), DEADLINE_S)
        stop.touch()
        codes = [await asyncio.wait_for(process.wait(), DEADLINE_S) for process in readers]
    assert codes == [0] * READERS, (settings.data / "output").read_text()
    commits = [(visible_at(lake, version), rows(lake.read(version))) for version in lake.versions()]
    for sent_at, known in written:
        assert next(at for at, there in commits if all(map(operator.le, known, there))) - sent_at < FRESH_S
    for rounds in ([json.loads(line) for line in each.read_text().splitlines()] for each in said):
        for earlier, later in pairwise([[0, 0, 0], *(each["counts"] for each in rounds), counts(load)]):
            assert all(map(operator.le, earlier, later)), "what was seen stays, and nothing is seen that isn't there"
        for each in rounds:
            committed = [there for at, there in commits if at < each["asked_at"]]
            assert all(map(operator.le, committed[-1], each["counts"])), "a commit is seen by every later query"


def visible_at(lake: Lake, version: int) -> float:
    """When a commit was seen by every reader, Unix s: `committed_at` is taken before the manifest is synced, which takes a busy disk long.

    The last change of the file's inode is its second link, the draft, going away. Its clock ticks every 10 ms at most.
    """
    return (lake.folder / "manifest" / f"{version:020}.json").stat().st_ctime + 0.01


def counts(load: Sequence[Sent]) -> list[int]:
    """Events, calls and trajectories."""
    kinds = Counter(type(sent.record).__name__ for sent in load)
    return [sum(sent.topic.name == "events" for sent in load), kinds["Completion"], kinds["Trajectory"]]


def rows(manifest: Manifest) -> list[int]:
    """Events, calls and trajectories in the lake."""
    return [
        sum(file.rows for file in manifest.files.get(table, ())) for table in ("events", "completions", "trajectories")
    ]
