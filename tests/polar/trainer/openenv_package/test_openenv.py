"""openenv 0.10.0 itself: its model takes our traces, and a factory's sessions are what its protocol says (`requirements.txt`).

The programs run in processes of their own, because openenv isn't among the development tools. Everything between a task and its
trajectory is a stand-in. TRL's worker, which needs a GPU, isn't run.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec.structs import replace

from examples.vllm_cpu.install import pins
from tests.installed import packages
from tests.polar.coordinator import Coordinator
from tests.polar.trainer.trees import trees
from tests.polar.trainer.writing import Writer, trajectory
from topics import events, tasks
from topics.contract import catalogue
from topics.environment.settings import Settings, write_env_file
from topics.log import admin, kafka
from topics.log.producer import LogProducer
from topics.types.completion import FREE, Sampling
from topics.types.session import Status
from topics.types.task import TaskRequest
from topics.types.trajectory import Trajectory

pytestmark = [pytest.mark.hard, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[4]
PINS = Path(__file__).with_name("requirements.txt")
EXAMPLES = 100
DEADLINE_S = 240.0
"""5 s of CPU time a process, nearly all of it for imports; machines are busy."""
PLAIN = Sampling(1.0, 1.0, -1, 0.0, 0.0, 0.0, 1.0, grammar_source=FREE)


def command(program: str, argument: Path) -> tuple[list[str], dict[str, str]]:
    """A program of this folder, with its environment."""
    folder = packages("openenv", PINS, sys.executable)
    path = os.pathsep.join(map(str, (folder, ROOT)))
    module = f"tests.polar.trainer.openenv_package.{program}"
    return [sys.executable, "-m", module, str(argument)], {**os.environ, "PYTHONPATH": path}


def test_openenv_s_own_model_takes_what_is_exported(tmp_path: Path) -> None:
    made: list[Trajectory] = []

    @examples(max_examples=EXAMPLES, derandomize=True, database=None)
    @given(trees(rewards=st.just(1.0)))
    def collect(one: Trajectory) -> None:
        made.append(one)

    collect()
    file = tmp_path / "trajectories.msgpack"
    file.write_bytes(msgspec.msgpack.encode(made))
    line, variables = command("check_traces", file)
    done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[0]) > EXAMPLES


def test_the_version_that_the_modules_name_is_the_pinned_one() -> None:
    for module in ("openenv.py", "exporters/openenv.py"):
        assert f"openenv {pins(PINS)['openenv']}" in (ROOT / "polar" / "trainer" / module).read_text()


@pytest.fixture
async def system(settings: Settings) -> AsyncIterator[Path]:
    """Ends each session as its instruction says; "slow" and "closed" when they are cancelled. Yields the data's folder."""
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    write_env_file(
        settings.data / "polar.env", {"POLAR_KAFKA": settings.bootstrap, "POLAR_NAMESPACE": settings.namespace}
    )
    producer = LogProducer(settings)
    await producer.start()
    async with Writer(settings) as writer:
        serving = asyncio.create_task(serve(settings, Coordinator(settings, producer), writer), name="system")
        yield settings.data
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    await producer.stop()


async def serve(settings: Settings, coordinator: Coordinator, writer: Writer) -> None:
    topics = [tasks.TOPIC, events.TOPIC]
    names = [topic.full_name(settings.namespace) for topic in topics]
    client = kafka.consumer(settings, auto_offset_reset="earliest")
    await client.start()
    client.assign(
        [
            kafka.TopicPartition(name, number)
            for name, topic in zip(names, topics, strict=True)
            for number in range(topic.embedded_partitions)
        ]
    )
    known: dict[str, TaskRequest] = {}
    try:
        while True:
            for records in (await client.getmany(timeout_ms=100)).values():
                for record in records:
                    if record.topic == names[0]:
                        request = TaskRequest.model_validate_json(record.value or b"")
                        known[request.task_id] = request
                        if request.instruction == "refused":
                            await coordinator.refuse(request, value=record.value)
                            continue
                        await coordinator.show(request)
                        is_over = request.instruction not in ("slow", "closed")
                    else:
                        fact = events.CODEC.known(record.value or b"")
                        assert isinstance(fact, events.CancelRequested)
                        request, is_over = known[fact.task_id], True
                    if is_over:
                        await writer.write([outcome(request)])
                        await coordinator.end(request, 0)
    finally:
        await client.stop()


def outcome(request: TaskRequest) -> Trajectory:
    kind = request.instruction
    sampling = replace(PLAIN, temperature=0.5) if kind == "otherwise" else PLAIN
    made = trajectory(request.task_id, reward=None if kind in ("unscored", "slow", "closed") else 0.25)
    status = {"late": Status.TIMED_OUT, "slow": Status.CANCELLED, "closed": Status.CANCELLED}.get(kind, made.status)
    return replace(made, status=status, calls=[replace(call, sampling=sampling) for call in made.calls])


async def test_a_spawned_worker_s_sessions_are_tasks_of_one_sample(settings: Settings, system: Path) -> None:
    line, variables = command("run_sessions", system)
    process = await asyncio.create_subprocess_exec(
        *line, env=variables, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            printed, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()[-4000:]
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    refused, colder, again = (found.pop(name)[0] for name in ("refused", "colder", "again"))
    assert found == {
        "rewarded": [0, [[10, 0]], 0.25, "COMPLETED"],
        "unscored": [1, [], None, "FAILED"],
        "late": ["r1-3-late.0 reached its time limit", [[10, 0]], 0.25, "TIMED_OUT"],
        "otherwise": [0, [], None, "COMPLETED"],
        "slow": ["r1-3-slow still runs after 0.5 s", [], None, "CANCELLED"],
        "closed": ["the session of r1-3-closed was closed while it ran"],
    }
    assert "no such harness" in refused
    assert colder.startswith("sampling.temperature: must be 1, as the trainer assumes")
    assert again.startswith("episode_id: was used before")
