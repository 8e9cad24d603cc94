"""The example's gradient step against what is known of it: by a formula written out, and by where log-probabilities go."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.vllm_cpu.serve import PYTHON, ROOT, environment

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def found(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    command: list[str | Path] = [PYTHON, "-m", "tests.vllm.learning", model_dir, tmp_path_factory.mktemp("learning")]
    done = subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_the_loss_is_the_clipped_objective_by_weight(found: dict[str, Any]) -> None:
    assert found["loss"] == pytest.approx(found["loss_by_hand"], rel=1e-4)


def test_what_did_well_gets_likelier_and_what_did_badly_less(found: dict[str, Any]) -> None:
    (better, worse, _), (was_better, was_worse, _) = found["after"], found["before"]
    assert better > was_better
    assert worse < was_worse


def test_the_comparison_tells_a_reload_that_was_left_out_and_a_token_in_a_wrong_place(found: dict[str, Any]) -> None:
    """Even of the first step, whose rate is the lowest."""
    assert found["own"] < found["bound"] / 10
    assert found["stale"] > found["bound"]
    assert found["shifted"] > found["bound"]


def test_a_restored_learner_goes_on_as_if_it_had_not_been_killed(found: dict[str, Any]) -> None:
    assert found["restored"] == 0
    assert found["forgetful"] > 0, "without its optimiser it is another"


def test_rows_of_a_session_are_in_one_minibatch(found: dict[str, Any]) -> None:
    parts = [Counter(part) for part in found["parts"]]
    assert len(parts) == 2
    assert sum(parts, Counter()) == Counter({"t.0": 2, "t.1": 2, "t.2": 2})
    assert all(set(part.values()) == {2} for part in parts)
