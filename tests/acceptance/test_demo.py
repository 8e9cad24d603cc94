"""`make demo` as a process: the real pi, real Kafka, real tests; the scripted engine stands in for a model, its record is the truth.

Two demos at once are stopped half-way, one by Ctrl-C and one by kill -9; then two more run to their ends on the data that those have
left. All tests look at these four. How long the parts took is printed, never judged.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
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
import pytest

from polar.embedded import Broker
from polar.scripted.record import Sampled
from topics import trajectories
from topics.environment.settings import Settings
from topics.log.owner import read_back
from topics.types.session import Status
from topics.types.trajectory import Trajectory, expand

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "run.py"
FOLDERS = (".polar", ".polar-2")
"""What two demos take that are started in one folder."""
INTENDED = {
    "cache": [(Status.COMPLETED, 1), (Status.COMPLETED, 0), (Status.TIMED_OUT, 0), (Status.COMPLETED, 0)],
    "calc": [(Status.COMPLETED, 1), (Status.COMPLETED, 0), (Status.COMPLETED, 1), (Status.COMPLETED, 1)],
    "intervals": [(Status.COMPLETED, 1), (Status.COMPLETED, 0), (Status.COMPLETED, 1), (Status.COMPLETED, 0)],
}
"""The end that the script beside each task means for each sample."""
FOR_EVER = b'"script":"cache/2/3"'
"""In the engine's record: it has told a sample to run its tests until they pass."""
HALFWAY_S = 120.0
ENDS_S = 300.0
GONE_S = 5.0

pytestmark = pytest.mark.timeout(600)  # whichever test is first waits for all four demos


@dataclass
class Running:
    """A demo in a process group of its own, as a terminal would start it."""

    process: subprocess.Popen[str]
    began: float

    def ended(self) -> tuple[int, str]:
        """Exit code and all that it said, once it and all who speak through it have ended."""
        said, _ = self.process.communicate(timeout=ENDS_S)
        print(f"{time.monotonic() - self.began:.1f} s:\n{said}")
        return self.process.returncode, said

    def until_halfway(self, data: Path) -> None:
        """Return when the sample that will not end by itself has come so far."""
        record = data / "engine-record.jsonl"
        deadline = time.monotonic() + HALFWAY_S
        while not record.exists() or FOR_EVER not in record.read_bytes():
            assert self.process.poll() is None, self.ended()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)


@dataclass
class Whole:
    """What a demo that ran to its end has said and left."""

    data: Path
    code: int
    said: str
    came_out: list[Trajectory]
    """Of this run alone, in the order of their session ids."""

    @property
    def run(self) -> str:
        return run_of(self.said)


def run_of(said: str) -> str:
    """What the task ids of a demo end in."""
    (run,) = set(re.findall(r"^demo: submitting \w+-(\w{6}):", said, re.MULTILINE))
    return str(run)


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


def left_at_last(folder: Path) -> list[str]:
    """Those that stay: what was told to end by kill -9 takes a moment."""
    deadline = time.monotonic() + GONE_S
    while left(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left(folder)


async def came_out(data: Path) -> list[Trajectory]:
    """What stopped demos have left on their Kafka, which is started on its data for the look."""
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demos")


@pytest.fixture(scope="module")
def stopped(folder: Path) -> list[tuple[int, str]]:
    """How two demos ended that were stopped half-way, by Ctrl-C and by kill -9."""
    second, first = (folder / name for name in FOLDERS)
    with demo(folder, "--data", str(first)) as interrupted, demo(folder, "--data", str(second)) as killed:
        interrupted.until_halfway(first)
        interrupted.interrupt()
        killed.until_halfway(second)
        killed.process.kill()
        return [interrupted.ended(), killed.ended()]


@pytest.fixture(scope="module")
def whole(folder: Path, stopped: list[tuple[int, str]]) -> Whole:
    """A demo on the data of the one that was killed, to its end."""
    with demo(folder) as running:
        code, said = running.ended()
    data = folder / FOLDERS[0]
    mine = [each for each in asyncio.run(came_out(data)) if each.task_id.endswith(f"-{run_of(said)}")]
    return Whole(data, code, said, sorted(mine, key=lambda each: each.session_id))


def test_a_demo_that_is_stopped_half_way_leaves_no_process(folder: Path, stopped: list[tuple[int, str]]) -> None:
    assert left_at_last(folder) == []
    (interrupted, said), (killed, _) = stopped
    assert (interrupted, "Traceback" in said) == (128 + signal.SIGINT, False)
    # Or a later `polar up`, which has no scripts, would go on with its tasks.
    assert len(re.findall(r"^(?:requested the end of \S+|polar: \S+ has ended already)$", said, re.MULTILINE)) == 3
    assert killed == -signal.SIGKILL


def test_a_demo_ends_well_on_what_another_left_and_leaves_no_process(folder: Path, whole: Whole) -> None:
    assert whole.code == 0
    assert left_at_last(folder) == []


def test_samples_end_as_their_scripts_mean_them_to(whole: Whole) -> None:
    ends = {trajectory.session_id: (trajectory.status, trajectory.reward) for trajectory in whole.came_out}
    assert ends == {
        f"{task}-{whole.run}.{index}": end for task, samples in INTENDED.items() for index, end in enumerate(samples)
    }


def test_each_session_is_one_trace_of_exactly_what_the_engine_sampled(whole: Whole) -> None:
    """The one that was stopped at its budget's end, too: what it had done until then is all there."""
    lines = (whole.data / "engine-record.jsonl").read_bytes().splitlines()
    sampled = [msgspec.json.decode(line, type=Sampled) for line in lines]
    for trajectory in whole.came_out:
        assert trajectory.harness == "pi"
        check(trajectory, [call for call in sampled if call.session_id == trajectory.session_id])


def check(trajectory: Trajectory, calls: list[Sampled]) -> None:
    """One trace; its trainable tokens and their logprobs are those of the record, and its tokens those of the last call."""
    assert all(call.script is not None for call in calls), "no filler: pi asks as the script expects"
    assert trajectory.stats.calls == len(calls) >= 2
    (trace,) = trajectory.traces
    written = expand(trajectory, trace)
    trained = written.loss_mask == 1
    assert written.token_ids[trained].tolist() == [token for call in calls for token in call.token_ids]
    truth = np.array([logprob for call in calls for logprob in call.logprobs], dtype=np.float32)
    assert (written.logprobs[trained] == truth).all()
    assert written.token_ids.tolist() == [*calls[-1].prompt_token_ids, *calls[-1].token_ids]


def test_the_table_at_the_end_has_every_sample_of_this_run_and_no_other(whole: Whole) -> None:
    table = re.findall(rf"^(\w+-\w{{6}}\.\d) +({'|'.join(Status)}) +(\S+)", whole.said, re.MULTILINE)
    assert table == [(one.session_id, one.status.value, f"{one.reward:g}") for one in whole.came_out]


def test_the_answers_of_sql_are_those_of_the_trajectories(whole: Whole) -> None:
    answers = re.findall(rf"^(\w+)-{whole.run} +(\d+) +(\S+) +\S+ +(\d+)$", whole.said, re.MULTILINE)
    assert answers == [
        (
            task,
            str(len(of_task)),
            f"{statistics.mean(rewards):g}",
            str(sum(one.stats.sampled_tokens for one in of_task)),
        )
        for task in INTENDED
        for of_task in [[one for one in whole.came_out if one.task_id == f"{task}-{whole.run}"]]
        for rewards in [[one.reward for one in of_task if one.reward is not None]]
    ]
    kinds = re.findall(rf"^({'|'.join(Status)}) +([01]) +(\d+) ", whole.said, re.MULTILINE)
    assert kinds == [("COMPLETED", "0", "5"), ("COMPLETED", "1", "6"), ("TIMED_OUT", "0", "1")]


def test_a_folder_that_cant_hold_data_is_said(tmp_path: Path) -> None:
    """Costs no demo: it ends before it starts anything."""
    taken = tmp_path / "taken"
    taken.touch()
    command = [sys.executable, str(DEMO), "--data", str(taken)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert (
        done.stdout
        == f"demo: {taken} can't be a data folder: [Errno 17] File exists: '{taken}'; choose another with --data\n"
    )
    assert done.stderr == ""
