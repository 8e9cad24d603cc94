"""A few updates of `examples/grpo_tiny`, its trainer killed once: everything that the long run rests on, but not that it learns."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.grpo_tiny.checkpoint import Step
from examples.grpo_tiny.report import Result
from examples.grpo_tiny.requests import SAMPLES
from examples.vllm_cpu.serve import ROOT
from tests.vllm.judging import EveryOther
from topics.types.session import task_id_of

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(2400)]

STEPS, PROMPTS, HELD_OUT, KILL_AT = 3, 4, 16, 2
SQL_S = 120.0
LARGEST = 1e-3
"""As in `examples/grpo_tiny/trainer.py`, which asserts it, too."""


@dataclass(frozen=True)
class Ended:
    """A run, and what it said."""

    said: str
    result: Result
    data: Path
    """The run's Polar."""


@pytest.fixture(scope="module")
def ended(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    words: dict[str, str | int] = {"--steps": STEPS, "--prompts": PROMPTS, "--held-out": HELD_OUT, "--kill-at": KILL_AT}
    evaluator = f"{EveryOther.__module__}:{EveryOther.__name__}"
    return run(model_dir, tmp_path_factory.mktemp("grpo_tiny"), words | {"--evaluator": evaluator})


def run(model_dir: Path, out: Path, options: dict[str, str | int]) -> Ended:
    """On its own server, whose weights it changes."""
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "examples.grpo_tiny", "--model", str(model_dir), "--out", str(out), *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return Ended(done.stdout, Result.read(out / "result.json"), out / "polar")


@pytest.fixture(scope="module")
def result(ended: Ended) -> Result:
    return ended.result


def test_the_trainer_was_killed_in_mid_step_and_another_went_on(ended: Ended) -> None:
    lines = [line.partition(" s  ")[2] for line in ended.said.splitlines()]
    killed, went_on = lines.index("is killed"), lines.index(f"goes on from version {KILL_AT - 1}")
    assert killed < went_on
    assert lines[killed - 1] == f"step {KILL_AT}: {PROMPTS // 2} of {PROMPTS} groups"


def test_after_each_reload_engine_and_trainer_are_one_model(result: Result) -> None:
    assert [step.number for step in result.steps] == [1, 2, 3]
    for step in result.steps:
        assert step.compared_tokens == step.trained_tokens > 0
        assert 0 < step.largest_difference < LARGEST
    assert result.last_difference is not None
    assert 0 < result.last_difference < LARGEST


def test_each_session_is_trained_on_once_although_the_trainer_was_killed(result: Result) -> None:
    assert result.killed_at == KILL_AT
    expected = {
        f"step-{step}-{prompt}.{sample}"
        for step in range(1, STEPS + 1)
        for prompt in range(PROMPTS)
        for sample in range(SAMPLES)
    }
    assert result.trained == dict.fromkeys(expected, 1)


def test_every_token_that_was_sampled_was_compared_and_trained_on(ended: Ended) -> None:
    """By the lake, which knows nothing of the trainer: nothing is masked away from the comparison, and no session ran a second time."""
    query = "SELECT mode, count(*), count(DISTINCT session_id), sum(sampled_tokens), sum(trainable_tokens) FROM trajectories GROUP BY ALL"
    command = [sys.executable, "-m", "polar.cli", "sql", "--data", ended.data, query, "--format", "csv"]
    finished = subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=True, timeout=SQL_S
    )
    rows = {
        mode: [int(figure) for figure in figures] for mode, *figures in csv.reader(finished.stdout.splitlines()[1:])
    }
    tokens = sum(step.compared_tokens for step in ended.result.steps)
    sessions = STEPS * PROMPTS * SAMPLES
    assert rows["train"] == [sessions, sessions, tokens, tokens]
    assert rows["eval"][:2] == [2 * HELD_OUT, 2 * HELD_OUT]


def test_every_session_was_judged(result: Result) -> None:
    for rewards in (result.before.rewards, result.after.rewards, *(step.rewards.values() for step in result.steps)):
        assert set(rewards) == {0.0, 1.0}
    assert len(result.before.rewards) == len(result.after.rewards) == HELD_OUT


def test_every_step_changes_the_weights(result: Result) -> None:
    """Else the comparison after reloads says nothing."""
    assert all(step.gradient_norm > 0 for step in result.steps)


def test_a_conversation_is_one_row(result: Result) -> None:
    """Most of them: where the quick model writes what the template spells otherwise, a row ends."""
    sessions = STEPS * PROMPTS * SAMPLES
    assert sessions <= sum(step.rows for step in result.steps) < 1.5 * sessions
    assert sum(step.calls for step in result.steps) > 1.5 * sessions


def test_a_trainer_that_is_killed_in_its_own_pause_has_a_successor_that_takes_it_over(
    model_dir: Path, tmp_path: Path
) -> None:
    """Its successor takes the pause over, and pushes what the checkpoint has: else step 2 would find other weights at the engine."""
    words: dict[str, str | int] = {"--steps": 2, "--prompts": 2, "--held-out": 8, "--kill-at": 1, "--kill-in": "push"}
    ended = run(model_dir, tmp_path, words)
    lines = [line.partition(" s  ")[2] for line in ended.said.splitlines()]
    killed = lines.index("is killed")
    assert lines[killed - 1] == "step 1: pushes"
    assert lines[killed + 1 : killed + 3] == ["goes on from version 1", "step 1: pushes"]
    assert [step.number for step in ended.result.steps] == [1, 2]
    assert [step.gradient_norm > 0 for step in ended.result.steps] == [*map(_has_unlike_rewards, ended.result.steps)]
    assert ended.result.last_difference is not None


def _has_unlike_rewards(step: Step) -> bool:
    """In a group: else every advantage is 0."""
    groups: defaultdict[str, set[float]] = defaultdict(set)
    for session_id, reward in step.rewards.items():
        if reward is not None:
            groups[task_id_of(session_id)].add(reward)
    return any(len(rewards) > 1 for rewards in groups.values())
