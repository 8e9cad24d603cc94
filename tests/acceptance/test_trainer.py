"""A trainer as a process: killed -9 between checkpoints it gets nothing twice and misses nothing; the example does what it says."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.polar.trainer.writing import Writer, finished, group, trajectory
from topics.environment.settings import Settings, write_env_file
from topics.trajectories import Output

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[2]
KILLS = 4
TASKS = 80
SAMPLES = 3
AT_ONCE = 20
DEADLINE_S = 60.0


@pytest.fixture
def data(tmp_path: Path, kafka: str, namespace: str) -> Path:
    """A data folder as a running `polar up` has it."""
    write_env_file(tmp_path / "polar.env", {"POLAR_KAFKA": kafka, "POLAR_NAMESPACE": namespace})
    return tmp_path


@pytest.fixture
async def writer(data: Path, kafka: str, namespace: str) -> AsyncIterator[Writer]:
    async with Writer(Settings(kafka=kafka, namespace=namespace, data=data)) as made:
        yield made


def interleaved(seed: int) -> list[Output]:
    """The records of all tasks, samples in any order, a group's end after its last."""
    turns = [task for task in range(TASKS) for _ in range(SAMPLES + 1)]
    random.Random(seed).shuffle(turns)
    seen: dict[int, int] = dict.fromkeys(turns, 0)
    records: list[Output] = []
    for task in turns:
        name, index = f"task-{task}", seen[task]
        seen[task] += 1
        records.append(trajectory(name, index, SAMPLES) if index < SAMPLES else finished(name, [1.0] * SAMPLES))
    return records


async def start(*arguments: str) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POLAR_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = await start(*arguments)
    out, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def trained(checkpoint: Path) -> list[str]:
    found: list[str] = json.loads(checkpoint.read_text())["trained"] if checkpoint.exists() else []
    return found


@pytest.mark.hard
@pytest.mark.parametrize("items", ["trajectories", "groups"])
async def test_a_trainer_killed_between_checkpoints_gets_nothing_twice_and_misses_nothing(
    data: Path, writer: Writer, items: str
) -> None:
    """The log grows meanwhile; its checkpoint is all that the next one knows."""
    chance = random.Random(7)
    records = interleaved(seed=7)
    checkpoint = data / "checkpoint.json"
    wanted = {"trajectories": TASKS * SAMPLES, "groups": TASKS}[items]
    trainee = ["-m", "tests.acceptance.trainee", str(data), str(checkpoint), items, str(wanted)]

    async def grow() -> None:
        for first in range(0, len(records), AT_ONCE):
            await writer.write(records[first : first + AT_ONCE])

    growing = asyncio.create_task(grow())
    for _ in range(KILLS):
        before = trained(checkpoint)
        process = await start(*trainee)
        async with asyncio.timeout(DEADLINE_S):
            while trained(checkpoint) == before and process.returncode is None:
                await asyncio.sleep(0.005)
        await asyncio.sleep(chance.uniform(0, 0.06))
        if process.returncode is None:
            process.kill()
        await process.communicate()
    killed_at = len(trained(checkpoint))
    code, _, said = await run(*trainee)
    assert code == 0, said
    await growing
    assert 0 < killed_at < wanted, "it was killed on its way"
    found = " ".join(trained(checkpoint)).split()
    assert sorted(found) == sorted(f"task-{task}.{index}" for task in range(TASKS) for index in range(SAMPLES))


async def test_the_example_trains_on_what_is_new_and_keeps_its_place(data: Path, writer: Writer) -> None:
    loop = ["examples/trainer_loop.py", *f"--data {data} --groups 2 --state {data / 's'} --timeout 1".split()]
    await writer.write([*group("mixed", [1.0, 0.0, None]), *group("equal", [1.0, 1.0])])
    code, said, error = await run(*loop)
    assert (code, error) == (0, "")
    assert "  equal: no spread in its rewards, dropped" in said.splitlines()
    assert re.search(r"^     0 COMPLETED reward  1\.00  advantage \+1\.00  5 tokens, 2 trained$", said, re.MULTILINE)
    assert re.search(r"^     1 COMPLETED reward  0\.00  advantage -1\.00  5 tokens, 2 trained$", said, re.MULTILINE)
    assert "     2 " not in said, "without a reward it is out of the batch"
    assert said.splitlines()[-2:] == ["  4 tokens trained", "steps: 1; nothing new for 1 s"]
    assert (await run(*loop))[1] == "steps: 0; nothing new for 1 s\n"
    await writer.write(group("later", [1.0, 0.0]))
    assert [line for line in (await run(*loop))[1].splitlines() if "later" in line] == ["  later"]


async def test_the_example_says_what_is_not_there(tmp_path: Path) -> None:
    code, _, said = await run("examples/trainer_loop.py", "--data", str(tmp_path))
    assert code == 3
    assert re.fullmatch(r"trainer_loop: no Kafka: .*polar up.*\n", said)
