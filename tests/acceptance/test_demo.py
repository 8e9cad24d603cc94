"""`make demo` as a process: the real pi, real Kafka, real tests; the scripted engine stands in for a model, its record is the truth.

How long the parts took is printed, never judged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import psutil

from polar.embedded import Broker
from polar.scripted.record import Sampled
from polar.settings import Settings
from polar.types.session import Status
from polar.types.trajectory import Trajectory, expand
from topics import trajectories
from topics.owner import read_back

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "run.py"
SAMPLES = 4
ENDS_S = 200.0
GONE_S = 5.0


@dataclass
class Running:
    """A demo in a process group of its own, as a terminal would start it."""

    process: subprocess.Popen[str]
    began: float

    def ended(self) -> tuple[int, str]:
        """Exit code and all that it said, once it has ended."""
        said, _ = self.process.communicate(timeout=ENDS_S)
        print(f"{time.monotonic() - self.began:.1f} s:\n{said}")
        return self.process.returncode, said

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)


@contextmanager
def demo(folder: Path, *options: str) -> Iterator[Running]:
    """A demo started in `folder`; killed at the end of the block if it hasn't ended by then."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POLAR_")}
    if "POLAR_CACHE" in os.environ:
        environment["POLAR_CACHE"] = os.environ["POLAR_CACHE"]
    process = subprocess.Popen(
        [sys.executable, str(DEMO), *options],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Running(process, time.monotonic())
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def left(folder: Path) -> list[str]:
    """Processes that work in a folder, or were started on it."""
    mark = os.fsencode(folder)
    found = []
    for process in psutil.process_iter():
        proc = Path("/proc", str(process.pid))
        try:
            marks = [
                (proc / "environ").read_bytes(),
                (proc / "cmdline").read_bytes(),
                os.fsencode((proc / "cwd").readlink()),
            ]
        except OSError:
            continue  # it has just ended
        if any(mark in each for each in marks):
            found.append(f"{process.pid}: {marks[1]!r}")
    return found


async def none_left(folder: Path) -> bool:
    """Whether all are gone, within moments: what was told to end by kill -9 takes some."""
    deadline = time.monotonic() + GONE_S
    while left(folder) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return left(folder) == []


async def came_out(data: Path) -> list[Trajectory]:
    """What a stopped demo has left on its Kafka, which is started on its data for the look."""
    broker = Broker(data, announce=print)
    await asyncio.to_thread(broker.start)
    try:
        settings = Settings(kafka=broker.bootstrap, data=data, replication=1, min_insync=1)
        topic = trajectories.TOPIC.full_name(settings.namespace)
        partitions = range(trajectories.TOPIC.embedded_partitions)
        outputs = [
            trajectories.CODEC.decode(record.value or b"")
            for partition in partitions
            async for record in read_back(settings, topic, partition)
        ]
    finally:
        await asyncio.to_thread(broker.stop)
    return [output for output in outputs if isinstance(output, Trajectory)]


def check(data: Path, found: list[Trajectory]) -> None:
    """All samples of one task have ended, well and badly, each in one trace of exactly what the engine sampled."""
    sampled = [
        msgspec.json.decode(line, type=Sampled) for line in (data / "engine-record.jsonl").read_bytes().splitlines()
    ]
    assert sorted(t.sample_index for t in found) == list(range(SAMPLES))
    assert sorted(t.reward for t in found if t.reward is not None) == [0.0, 0.0, 1.0, 1.0]
    for trajectory in found:
        assert trajectory.status is Status.COMPLETED
        assert trajectory.harness == "pi"
        calls = [call for call in sampled if call.session_id == trajectory.session_id]
        assert all(call.script is not None for call in calls), "no filler: pi asks as the script expects"
        assert trajectory.stats.calls == len(calls) >= 2
        (trace,) = trajectory.traces
        written = expand(trajectory, trace)
        trained = written.loss_mask == 1
        assert written.token_ids[trained].tolist() == [token for call in calls for token in call.token_ids]
        truth = np.array([logprob for call in calls for logprob in call.logprobs], dtype=np.float32)
        assert (written.logprobs[trained] == truth).all()
        assert written.token_ids.tolist() == [*calls[-1].prompt_token_ids, *calls[-1].token_ids]


async def test_two_demos_beside_each_other_end_well_and_leave_exact_trajectories(tmp_path: Path) -> None:
    with demo(tmp_path) as first, demo(tmp_path) as second:
        ends = [await asyncio.to_thread(each.ended) for each in (first, second)]
    assert [code for code, _ in ends] == [0, 0]
    assert await none_left(tmp_path), left(tmp_path)
    for data in (tmp_path / ".polar", tmp_path / ".polar-2"):
        (said,) = [said for _, said in ends if f"running on the data folder {data.name}\n" in said]
        assert said.count(" COMPLETED ") == SAMPLES
        check(data, await came_out(data))


async def test_an_interrupted_demo_leaves_nothing_behind_and_the_next_on_its_data_ends_well(tmp_path: Path) -> None:
    data = tmp_path / "data"
    record = data / "engine-record.jsonl"
    with demo(tmp_path, "--data", str(data)) as interrupted:
        async with asyncio.timeout(ENDS_S):
            while not record.exists() or record.stat().st_size == 0:
                assert interrupted.process.poll() is None, interrupted.ended()
                await asyncio.sleep(0.05)
        assert left(data), "pi is at work"
        interrupted.interrupt()
        code, said = await asyncio.to_thread(interrupted.ended)
    assert (code, "Traceback" in said) == (128 + signal.SIGINT, False)
    assert await none_left(data), left(data)
    with demo(tmp_path, "--data", str(data)) as again:
        code, said = await asyncio.to_thread(again.ended)
    assert code == 0
    assert said.count(" COMPLETED ") == SAMPLES
    assert await none_left(data), left(data)
