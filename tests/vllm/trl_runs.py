"""Trainings by TRL against a running system with a vLLM of their own: programs, and what TRL left of them."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.grpo_tiny.programs import Program, beside
from examples.grpo_tiny.system import System, running
from examples.vllm_cpu.packages import packages, variables
from examples.vllm_cpu.serve import PYTHON, ROOT, serving
from polar.trainer.trl_settings import last_checkpoint
from tests.vllm.judging import EveryOther

PINS = ROOT / "examples" / "trl_grpo" / "requirements.txt"
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

    def train(
        self,
        module: str,
        run: str,
        served: Path,
        options: Mapping[str, object],
        *,
        log: Path,
        kill_if: Callable[[], bool] | None = None,
    ) -> None:
        """Run a program to its end, or to a SIGKILL as soon as `kill_if` is true."""
        common = {"--data": self.folder / "polar", "--model": self.model, "--served": served, "--engine": self.engine}
        common |= {"--out": self.folder / run, "--run": run}
        common |= {"--evaluator": f"{EveryOther.__module__}:{EveryOther.__name__}"}
        words = tuple(str(word) for option in (common | dict(options)).items() for word in option)
        program = Program(PYTHON, module, words, variables(packages(PINS)) | TURNS)
        with log.open("wb") as output, beside(program, output) as process:
            while process.poll() is None:
                self.polar.check()
                if kill_if is not None and kill_if():
                    process.kill()
                time.sleep(LOOK_S)
        assert process.returncode == (0 if kill_if is None else -signal.SIGKILL), log.read_text()[-SHOWN:]

    def query(self, sql: str) -> list[list[str]]:
        """The rows of a query on the lake."""
        command = [sys.executable, "-m", "polar.cli", "sql", "--data", self.folder / "polar", sql, "--format", "csv"]
        done = subprocess.run(
            list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=True, timeout=SQL_S
        )
        return [*csv.reader(done.stdout.splitlines()[1:])]


@contextmanager
def set_up(model: Path, folder: Path) -> Iterator[Setup]:
    """On its own server, whose weights it changes."""
    served = folder / "served"
    shutil.copytree(model, served)
    with serving(served, log=folder / "vllm.log", settings=TURNS) as server, running(folder / "polar", server) as polar:
        yield Setup(polar, server.url, model, served, folder)


@dataclass(frozen=True)
class Trained:
    """What TRL left of a run."""

    folder: Path

    @property
    def is_saved(self) -> bool:
        """Whether there is a whole checkpoint."""
        return last_checkpoint(self.folder) is not None

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
