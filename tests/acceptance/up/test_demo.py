"""`make demo` as a process: the real pi, real Kafka, real tests; the scripted engine stands in for a model, its record is the truth.

One demo ends in an empty folder. In `make test-soak`, two demos at once are stopped half-way, one by Ctrl-C and one by kill -9, and another
runs to its end on the data that the killed demo left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from consumers.stages.artifacts import PATCH
from polar.embedded import Broker
from polar.scripted.record import Sampled
from tests.acceptance.up.demos import DEMO, DemoRun, demo
from tests.waiting import until
from topics import trajectories
from topics.environment.settings import Settings, load
from topics.log.owner import read_back
from topics.types.session import Status
from topics.types.token_tree import Masked
from topics.types.trajectory import Trajectory, expand

FOLDERS = (".polar", ".polar-2")
"""What two demos take that are started in one folder."""
INTENDED = {
    "cache": [(Status.COMPLETED, 1), (Status.COMPLETED, 0), (Status.TIMED_OUT, 0), (Status.COMPLETED, 0)],
    "calc": [(Status.COMPLETED, 1), (Status.COMPLETED, 0), (Status.COMPLETED, 1), (Status.COMPLETED, 1)],
    "intervals": [(Status.COMPLETED, 1), (Status.COMPLETED, 0), (Status.COMPLETED, 1), (Status.COMPLETED, 0)],
}
"""The end that the script beside each task means for each sample."""
GONE_S = 5.0

pytestmark = pytest.mark.timeout(600)  # whichever test is first waits for the demos


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
    with contextlib.suppress(AssertionError):
        until(lambda: not left(folder), GONE_S)
    return left(folder)


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
def after_kill(folder: Path, stopped: list[tuple[int, str]]) -> DemoRun:
    """A demo on the data of the one that was killed, to its end."""
    with demo(folder) as running:
        code, output = running.ended()
    assert code == 0, output
    return DemoRun(folder / FOLDERS[0], output)


@dataclass(frozen=True)
class Whole:
    """A demo that ran to its end, and what came out of it."""

    demo: DemoRun
    came_out: list[Trajectory]
    """Of this run alone, in the order of their session ids."""


@pytest.fixture(scope="module", params=["finished_demo", pytest.param("after_kill", marks=pytest.mark.soak)])
def whole(request: pytest.FixtureRequest) -> Whole:
    """A demo in an empty folder, which `polar up` serves now, and one on what a killed demo left."""
    done: DemoRun = request.getfixturevalue(request.param)
    if request.param == "finished_demo":
        outputs = asyncio.run(read_all(load(request.getfixturevalue("up").data)))
    else:
        with Broker(done.data, announce=print) as broker:
            outputs = asyncio.run(read_all(Settings(kafka=broker.bootstrap, data=done.data)))
    of_run = [one for one in outputs if isinstance(one, Trajectory) and one.task_id.endswith(f"-{done.run}")]
    return Whole(done, sorted(of_run, key=lambda one: one.session_id))


async def read_all(settings: Settings) -> list[object]:
    topic = trajectories.TOPIC.full_name(settings.namespace)
    return [
        trajectories.CODEC.decode(record.value or b"")
        for partition in range(trajectories.TOPIC.embedded_partitions)
        async for record in read_back(settings, topic, partition)
    ]


@pytest.mark.soak
def test_a_demo_that_is_stopped_half_way_leaves_no_process(folder: Path, stopped: list[tuple[int, str]]) -> None:
    assert left_at_last(folder) == []
    (interrupted, said), (killed, _) = stopped
    assert (interrupted, "Traceback" in said) == (128 + signal.SIGINT, False)
    # Or a later `polar up`, which has no scripts, would go on with its tasks.
    assert len(re.findall(r"^(?:requested the end of \S+|polar: \S+ has ended already)$", said, re.MULTILINE)) == 3
    assert killed == -signal.SIGKILL


@pytest.mark.soak
def test_a_demo_ends_well_on_what_another_left_and_leaves_no_process(folder: Path, after_kill: DemoRun) -> None:
    assert left_at_last(folder) == []


def test_samples_end_as_their_scripts_mean_them_to(whole: Whole) -> None:
    ends = {trajectory.session_id: (trajectory.status, trajectory.reward) for trajectory in whole.came_out}
    assert ends == {
        f"{task}-{whole.demo.run}.{index}": end
        for task, samples in INTENDED.items()
        for index, end in enumerate(samples)
    }


def test_each_sample_that_mended_its_repository_has_its_patch(whole: Whole) -> None:
    mended = {one.session_id: one.artifacts or {} for one in whole.came_out if one.reward == 1}
    assert mended
    assert {session for session, artifacts in mended.items() if PATCH not in artifacts} == set()


def test_each_session_is_one_trace_of_exactly_what_the_engine_sampled(whole: Whole) -> None:
    """The one that was stopped at its budget's end, too: what it had read until then is all there."""
    lines = (whole.demo.data / "engine-record.jsonl").read_bytes().splitlines()
    sampled = [msgspec.json.decode(line, type=Sampled) for line in lines]
    for trajectory in whole.came_out:
        assert trajectory.harness == "pi"
        calls = [call for call in sampled if call.session_id == trajectory.session_id]
        check(trajectory, calls[: trajectory.stats.calls - 1] if was_cut_off(trajectory) else calls)


def was_cut_off(trajectory: Trajectory) -> bool:
    """Whether pi was stopped at its budget's end while the engine answered or the answer was on its way: nobody read it."""
    last = [node for node in trajectory.nodes if node.call == len(trajectory.calls) - 1]
    return trajectory.status is Status.TIMED_OUT and {node.masked for node in last} <= {Masked.DISOWNED}


def check(trajectory: Trajectory, calls: list[Sampled]) -> None:
    """One trace; its trainable tokens and their logprobs are those of the record, and its tokens those of the last call."""
    assert all(call.script is not None for call in calls), "no filler: pi asks as the script expects"
    assert trajectory.stats.calls - was_cut_off(trajectory) == len(calls) >= 2
    (trace,) = trajectory.traces
    written = expand(trajectory, trace)
    trained = written.loss_mask == 1
    assert written.token_ids[trained].tolist() == [token for call in calls for token in call.token_ids]
    truth = np.array([logprob for call in calls for logprob in call.logprobs], dtype=np.float32)
    assert (written.logprobs[trained] == truth).all()
    assert written.token_ids.tolist() == [*calls[-1].prompt_token_ids, *calls[-1].token_ids]


def test_the_table_at_the_end_has_every_sample_of_this_run_and_no_other(whole: Whole) -> None:
    table = re.findall(rf"^(\w+-\w{{6}}\.\d) +({'|'.join(Status)}) +(\S+)", whole.demo.output, re.MULTILINE)
    assert table == [(one.session_id, one.status.value, f"{one.reward:g}") for one in whole.came_out]


def test_the_answers_of_sql_are_those_of_the_trajectories(whole: Whole) -> None:
    answers = re.findall(rf"^(\w+)-{whole.demo.run} +(\d+) +(\S+) +\S+ +(\d+)$", whole.demo.output, re.MULTILINE)
    assert answers == [
        (
            task,
            str(len(of_task)),
            f"{statistics.mean(rewards):g}",
            str(sum(one.stats.sampled_tokens for one in of_task)),
        )
        for task in INTENDED
        for of_task in [[one for one in whole.came_out if one.task_id == f"{task}-{whole.demo.run}"]]
        for rewards in [[one.reward for one in of_task if one.reward is not None]]
    ]
    kinds = re.findall(rf"^({'|'.join(Status)}) +([01]) +(\d+) ", whole.demo.output, re.MULTILINE)
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
