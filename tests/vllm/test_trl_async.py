"""TRL's AsyncGRPOTrainer over real Kafka, proxy and vLLM (`trl_async_training.py`): updates while further sessions run, and one SIGKILL.

TRL logs the mean ratio of its own probability of a token to the engine's, and their divergence `kl`, which is half the mean square of small
differences of log-probabilities. Both compare rows with the trainer's weights of that update, so they tell whether engine and trainer are
one model only where all rows are of the newest weights: in the first update of a process. The last process allows no older rows there.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

from polar.trainer.consumer import TrajectoryConsumer
from polar.trainer.exporters.trl import rollout_samples
from polar.trainer.vllm_weights import WEIGHTS
from tests.vllm.trl_runs import Setup, Trained, set_up
from topics.types.session import task_id_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]

RUN = "async"
MANY, STALENESS, MORE = 100, 4, 2
"""Updates that the killed process would do; versions that a row may be old; updates after the first resumption."""
ROWS_OF_AN_UPDATE = 6
LARGEST = 1e-3
READ_S = 30.0

Row = tuple[int, str]
"""The number of a row's group, and a digest of its tokens."""


def train(setup: Setup, run: str, served: Path, steps: int, staleness: int, *, until_saved: bool = False) -> list[Row]:
    """Train to the end, or to a SIGKILL when a checkpoint is there. Returns the rows of the updates that the last checkpoint has."""
    trained, log = Trained(setup.folder / run), setup.folder / f"{run}-{steps}-{staleness}.log"
    before = len(trained.steps) if trained.is_saved else 0
    options = {"--steps": steps, "--staleness": staleness}
    kill_if = (lambda: trained.is_saved) if until_saved else None
    setup.train("tests.vllm.trl_async_training", run, served, options, log=log, kill_if=kill_if)
    found = re.findall(r"^row (\d+) (\w+)$", log.read_text(), re.MULTILINE)
    rows = round(sum(entry["batch/samples_per_step"] for entry in trained.steps[before:]))
    return [(int(number), tokens) for number, tokens in found[:rows]]


@dataclass(frozen=True)
class Run:
    """One that was killed, resumed, and resumed once more with no older rows."""

    trained: Trained
    killed: list[Row]
    resumed: list[Row]
    strict: list[Row]
    killed_at: int
    """Update."""


@pytest.fixture(scope="module")
def setup(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with set_up(model_dir, tmp_path_factory.mktemp("trl_async")) as made:
        yield made


@pytest.fixture(scope="module")
def run(setup: Setup) -> Run:
    trained = Trained(setup.folder / RUN)
    killed = train(setup, RUN, setup.served, MANY, STALENESS, until_saved=True)
    killed_at = len(trained.steps)
    resumed = train(setup, RUN, setup.served, killed_at + MORE, STALENESS)
    strict = train(setup, RUN, setup.served, killed_at + MORE + 1, 0)
    return Run(trained, killed, resumed, strict, killed_at)


def difference(entry: Mapping[str, float]) -> float:
    """Root mean square of the differences of log-probabilities between engine and trainer, over an update's tokens."""
    return math.sqrt(2 * max(entry["kl"], 0.0))


def test_engine_and_trainer_are_one_model(run: Run) -> None:
    steps = run.trained.steps
    assert [entry["step"] for entry in steps] == list(range(1, run.killed_at + MORE + 2))
    assert all(entry["grad_norm"] > 0 for entry in steps)
    for entry in (steps[0], steps[-1]):
        assert entry["sample/staleness_max"] == 0
        assert difference(entry) < LARGEST
        assert entry["ratio"] == pytest.approx(1, abs=LARGEST)


def test_the_weights_change_and_the_engine_serves_them(run: Run, setup: Setup) -> None:
    first, last = (file.read_bytes() for file in (setup.model / WEIGHTS, setup.served / WEIGHTS))
    assert len(first) == pytest.approx(len(last), rel=1e-3)
    assert first != last
    found = setup.query(f"SELECT DISTINCT policy_version FROM calls WHERE run = '{RUN}'")
    # TRL's first version is 1, and one more after each update.
    assert {"1", str(run.killed_at + MORE + 1)} <= {row[0] for row in found}


def test_each_row_is_trained_once_though_a_process_was_killed(run: Run, setup: Setup) -> None:
    rows = [run.killed, run.resumed, run.strict]
    assert list(map(len, rows)) == [ROWS_OF_AN_UPDATE * updates for updates in (run.killed_at, MORE, 1)]
    trained, written = Counter(chain.from_iterable(rows)), rows_on_the_log(setup)
    assert trained <= written
    # Only the last group may be incomplete: the strict process drops what is left of it.
    numbers = {number for number, _ in [*run.killed, *run.resumed]} - {run.resumed[-1][0]}
    assert {row: count for row, count in trained.items() if row[0] in numbers} == {
        row: count for row, count in written.items() if row[0] in numbers
    }


def rows_on_the_log(setup: Setup) -> Counter[Row]:
    """What the sessions of all groups gave, read by a consumer of its own."""
    with TrajectoryConsumer(settings=setup.polar.settings, run=RUN, timeout_s=READ_S) as consumer:
        groups = {int(group.task_id.split("-")[1]): group for group in consumer.groups()}
    return Counter(
        (number, hashlib.sha256(row.input_ids.tobytes()).hexdigest()[:16])
        for number, group in groups.items()
        for row in rollout_samples(group, group_id=number)
    )


def test_each_session_ran_once(run: Run, setup: Setup) -> None:
    """By the lake, which knows nothing of the trainer."""
    rows = setup.query(f"SELECT session_id, attempt FROM sessions WHERE run = '{RUN}'")
    assert len({row[0] for row in rows}) == len(rows)
    assert {row[1] for row in rows} == {"1"}
    numbers = {int(task_id_of(row[0]).split("-")[1]) for row in rows}
    assert {number for number, _ in [*run.killed, *run.resumed, *run.strict]} <= numbers


def test_weights_that_do_not_reach_the_engine_are_found(run: Run, setup: Setup) -> None:
    """The process writes them to a folder that nobody serves; the engine has those that the other run left."""
    elsewhere = setup.folder / "elsewhere"
    shutil.copytree(setup.model, elsewhere)
    train(setup, "unserved", elsewhere, 1, STALENESS)
    (entry,) = Trained(setup.folder / "unserved").steps
    assert difference(entry) > LARGEST
