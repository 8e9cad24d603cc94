"""TRL's GRPOTrainer over real Kafka, proxy and vLLM (`examples/trl_grpo`): a few updates, the process killed once as it waits for sessions.

The proofs are TRL's own: it recomputes the log-probability of every trained token. A run whose weights don't reach the engine shows that
this comparison finds the fault.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from polar.trainer.vllm_weights import WEIGHTS
from tests.vllm.trl_runs import Setup, Trained, set_up
from topics.types.session import task_id_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]

BATCHES, PROMPTS, GROUP, KILL_IN = 4, 2, 8, 1
UPDATES = 2
"""A batch of rollouts is trained in so many updates, as in the example."""
STEPS = [UPDATES * (at + 1) for at in range(BATCHES)]
"""The numbers of the updates that end a batch, after which TRL logs."""
LARGEST = 1e-3


def train(setup: Setup, run: str, batches: int, served: Path, kill_in: int | None = None) -> None:
    """Run the example to its end, or to a SIGKILL after the tasks of batch `kill_in`, from 0 on, were submitted."""
    log = setup.folder / f"{run}-{batches}-{kill_in}.log"
    kill_if = None if kill_in is None else lambda: f"first={run}-{kill_in * UPDATES}-0-0-" in log.read_text()
    options = {"--batches": batches, "--prompts": PROMPTS}
    setup.train("examples.trl_grpo", run, served, options, log=log, kill_if=kill_if)


def sessions_of(trained: Trained) -> dict[int, list[str]]:
    """The ids of the trained sessions, by the update that ends their batch."""
    tables = [pyarrow.parquet.read_table(file) for file in sorted(trained.folder.glob("completions/*.parquet"))]
    return {table["step"][0].as_py(): table["session_id"].to_pylist() for table in tables}


@pytest.fixture(scope="module")
def setup(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with set_up(model_dir, tmp_path_factory.mktemp("trl_grpo")) as made:
        yield made


@pytest.fixture(scope="module")
def trained(setup: Setup) -> Trained:
    """A run that was killed once, and then went on."""
    train(setup, "killed", BATCHES, setup.served, KILL_IN)
    left = Trained(setup.folder / "killed")
    assert left.state["global_step"] == KILL_IN * UPDATES
    train(setup, "killed", BATCHES, setup.served)
    return left


def test_engine_and_trainer_are_one_model_in_every_batch(trained: Trained) -> None:
    """TRL's comparison of the engine's log-probabilities with its own, over all trained tokens."""
    assert [entry["step"] for entry in trained.steps] == STEPS
    for entry in trained.steps:
        assert 0 < entry["sampling/sampling_logp_difference/max"] < LARGEST
        assert entry["grad_norm"] > 0
        assert entry["polar/null_rewards"] == entry["polar/groups_left_out"] == 0


def test_the_weights_change_and_the_engine_serves_what_the_last_rollouts_needed(trained: Trained, setup: Setup) -> None:
    first, last = (file.read_bytes() for file in (setup.model / WEIGHTS, setup.served / WEIGHTS))
    assert len(first) == pytest.approx(len(last), rel=1e-3)
    assert first != last
    published = setup.query("SELECT DISTINCT policy_version FROM calls WHERE run = 'killed' ORDER BY 1")
    assert [row[0] for row in published] == [str(step - UPDATES) for step in STEPS]


def test_a_killed_process_resumes_and_trains_each_session_once(trained: Trained) -> None:
    """This holds also for the batch in which the process was killed. Its sessions had run, and the next process trains them."""
    ids = Counter(session for sessions in sessions_of(trained).values() for session in sessions)
    assert sorted(sessions_of(trained)) == STEPS
    assert set(ids.values()) == {1}
    assert len(ids) == BATCHES * PROMPTS * GROUP
    for step, sessions in sessions_of(trained).items():
        tasks = Counter(map(task_id_of, sessions))
        assert set(tasks.values()) == {GROUP}
        assert all(task_id.startswith(f"killed-{step - UPDATES}-0-") for task_id in tasks)


def test_each_session_ran_once(trained: Trained, setup: Setup) -> None:
    """By the lake, which knows nothing of the trainer."""
    rows = setup.query("SELECT session_id, attempt FROM sessions WHERE run = 'killed'")
    trained_ids = {session for sessions in sessions_of(trained).values() for session in sessions}
    assert {row[0] for row in rows} == trained_ids
    assert {row[1] for row in rows} == {"1"}
    assert len(rows) == len(trained_ids)


def test_weights_that_do_not_reach_the_engine_are_found(trained: Trained, setup: Setup) -> None:
    """The run writes them to a folder that nobody serves; the engine has those that the other run left."""
    elsewhere = setup.folder / "elsewhere"
    shutil.copytree(setup.model, elsewhere)
    train(setup, "unserved", 1, elsewhere)
    (entry,) = Trained(setup.folder / "unserved").steps
    assert entry["sampling/sampling_logp_difference/max"] > LARGEST
