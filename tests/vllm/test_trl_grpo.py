"""TRL's GRPOTrainer over real Kafka, proxy and vLLM (`examples/trl_grpo`): a few updates, the process killed once as it waits for sessions.

The proofs are TRL's own: it recomputes the log-probability of every trained token. A run whose weights don't reach the engine shows that
this comparison finds the fault.
"""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from examples.grpo_tiny.programs import Program, beside
from examples.grpo_tiny.system import System, running
from examples.vllm_cpu.packages import packages, variables
from examples.vllm_cpu.serve import PYTHON, ROOT, serving
from polar.trainer.trl_settings import last_checkpoint
from polar.trainer.vllm_weights import WEIGHTS
from tests.vllm.judging import EveryOther
from topics.types.session import task_id_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]

PINS = ROOT / "examples" / "trl_grpo" / "requirements.txt"
STEPS, PROMPTS, GROUP, KILL_IN = 4, 2, 8, 1
LARGEST = 1e-3
SQL_S = 120.0
LOOK_S = 0.1
SHOWN = 4000
"""Characters of the end of a log."""
TURNS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""For engine and trainer, which take turns on the cores."""


@dataclass(frozen=True)
class Setup:
    """A running system, and the folders of its runs."""

    polar: System
    engine: str
    model: Path
    served: Path
    folder: Path

    def train(self, run: str, steps: int, served: Path, kill_in: int | None = None) -> None:
        """Run the example to its end, or to a SIGKILL after the tasks of step `kill_in`, from 0 on, were submitted."""
        options = {"--data": self.folder / "polar", "--model": self.model, "--served": served, "--engine": self.engine}
        options |= {"--out": self.folder / run, "--run": run, "--steps": steps, "--prompts": PROMPTS}
        options |= {"--evaluator": f"{EveryOther.__module__}:{EveryOther.__name__}"}
        words = tuple(str(word) for option in options.items() for word in option)
        program = Program(PYTHON, "examples.trl_grpo", words, variables(packages(PINS)) | TURNS)
        log = self.folder / f"{run}-{steps}-{kill_in}.log"
        submitted = f"first={run}-{kill_in}-0-0-"
        with log.open("wb") as output, beside(program, output) as process:
            while process.poll() is None:
                self.polar.check()
                if submitted in log.read_text():
                    process.kill()
                time.sleep(LOOK_S)
        assert process.returncode == (0 if kill_in is None else -signal.SIGKILL), log.read_text()[-SHOWN:]


@dataclass(frozen=True)
class Trained:
    """What TRL left of a run."""

    folder: Path

    @property
    def state(self) -> dict[str, Any]:
        """Of the last checkpoint."""
        checkpoint = last_checkpoint(self.folder)
        assert checkpoint is not None
        state: dict[str, Any] = json.loads((Path(checkpoint) / "trainer_state.json").read_text())
        return state

    @property
    def steps(self) -> list[dict[str, float]]:
        """TRL's log of each update."""
        return [entry for entry in self.state["log_history"] if "loss" in entry]

    @property
    def sessions(self) -> dict[int, list[str]]:
        """The ids of the trained sessions, by step."""
        tables = [pyarrow.parquet.read_table(file) for file in sorted(self.folder.glob("completions/*.parquet"))]
        return {table["step"][0].as_py(): table["session_id"].to_pylist() for table in tables}


@pytest.fixture(scope="module")
def setup(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """On its own server, whose weights it changes."""
    folder = tmp_path_factory.mktemp("trl_grpo")
    served = folder / "served"
    shutil.copytree(model_dir, served)
    with serving(served, log=folder / "vllm.log", settings=TURNS) as server, running(folder / "polar", server) as polar:
        yield Setup(polar, server.url, model_dir, served, folder)


@pytest.fixture(scope="module")
def trained(setup: Setup) -> Trained:
    """A run that was killed once, and then went on."""
    setup.train("killed", STEPS, setup.served, KILL_IN)
    left = Trained(setup.folder / "killed")
    assert left.state["global_step"] == KILL_IN
    setup.train("killed", STEPS, setup.served)
    return left


def test_engine_and_trainer_are_one_model_in_every_step(trained: Trained) -> None:
    """TRL's comparison of the engine's log-probabilities with its own, over all trained tokens."""
    assert [entry["step"] for entry in trained.steps] == [1, 2, 3, 4]
    for entry in trained.steps:
        assert 0 < entry["sampling/sampling_logp_difference/max"] < LARGEST
        assert entry["grad_norm"] > 0
        assert entry["polar/null_rewards"] == entry["polar/groups_left_out"] == 0


def test_the_weights_change_and_the_engine_serves_what_the_last_rollouts_needed(trained: Trained, setup: Setup) -> None:
    first, last = (file.read_bytes() for file in (setup.model / WEIGHTS, setup.served / WEIGHTS))
    assert len(first) == pytest.approx(len(last), rel=1e-3)
    assert first != last
    published = query(setup, "SELECT DISTINCT policy_version FROM calls WHERE run = 'killed' ORDER BY 1")
    assert [row[0] for row in published] == [str(step) for step in range(STEPS)]


def test_a_killed_process_resumes_and_trains_each_session_once(trained: Trained) -> None:
    """Of the step in which it was killed, too: its sessions ran before and are trained by the process that went on."""
    ids = Counter(session for sessions in trained.sessions.values() for session in sessions)
    assert sorted(trained.sessions) == [1, 2, 3, 4]
    assert set(ids.values()) == {1}
    assert len(ids) == STEPS * PROMPTS * GROUP
    for step, sessions in trained.sessions.items():
        tasks = Counter(map(task_id_of, sessions))
        assert set(tasks.values()) == {GROUP}
        assert all(task_id.startswith(f"killed-{step - 1}-0-") for task_id in tasks)


def test_each_session_ran_once(trained: Trained, setup: Setup) -> None:
    """By the lake, which knows nothing of the trainer."""
    rows = query(setup, "SELECT session_id, attempt FROM sessions WHERE run = 'killed'")
    trained_ids = {session for sessions in trained.sessions.values() for session in sessions}
    assert {row[0] for row in rows} == trained_ids
    assert {row[1] for row in rows} == {"1"}
    assert len(rows) == len(trained_ids)


def test_weights_that_do_not_reach_the_engine_are_found(trained: Trained, setup: Setup) -> None:
    """The run writes them to a folder that nobody serves; the engine has those that the other run left."""
    elsewhere = setup.folder / "elsewhere"
    shutil.copytree(setup.model, elsewhere)
    setup.train("unserved", 1, elsewhere)
    (entry,) = Trained(setup.folder / "unserved").steps
    assert entry["sampling/sampling_logp_difference/max"] > LARGEST


def query(setup: Setup, sql: str) -> list[list[str]]:
    """The rows of a query on the lake."""
    command = [sys.executable, "-m", "polar.cli", "sql", "--data", setup.folder / "polar", sql, "--format", "csv"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=True, timeout=SQL_S)
    return [*csv.reader(done.stdout.splitlines()[1:])]
