"""A few updates of `examples/grpo_tiny`, its trainer killed once: everything that the long run rests on, but not that it learns."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.grpo_tiny.report import Result
from examples.grpo_tiny.requests import SAMPLES
from examples.vllm_cpu.serve import ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

STEPS, PROMPTS, HELD_OUT, KILL_AT = 3, 4, 16, 2
LARGEST = 1e-3
"""As in `examples/grpo_tiny/trainer.py`, which asserts it, too."""


@dataclass(frozen=True)
class Ended:
    """A run, and what it said."""

    said: str
    result: Result


@pytest.fixture(scope="module")
def ended(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """On its own server, whose weights it changes."""
    out = tmp_path_factory.mktemp("grpo_tiny")
    words = ["--model", model_dir, "--out", out, "--steps", STEPS, "--prompts", PROMPTS]
    words += ["--held-out", HELD_OUT, "--kill-at", KILL_AT]
    command = [sys.executable, "-m", "examples.grpo_tiny", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return Ended(done.stdout, Result.read(out / "result.json"))


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


def test_every_session_was_judged(result: Result) -> None:
    for rewards in (result.before.rewards, result.after.rewards, *(step.rewards.values() for step in result.steps)):
        assert set(rewards) <= {0.0, 0.5, 1.0}
    assert len(result.before.rewards) == len(result.after.rewards) == HELD_OUT


def test_some_session_did_well(result: Result) -> None:
    """Else every advantage is 0, no weight changes, and the comparison after reloads says nothing."""
    assert all(max(step.rewards.values(), key=lambda reward: reward or 0) for step in result.steps)


def test_a_conversation_is_one_row(result: Result) -> None:
    """Most of them: where the quick model writes what the template spells otherwise, a row ends."""
    sessions = STEPS * PROMPTS * SAMPLES
    assert sessions <= sum(step.rows for step in result.steps) < 1.5 * sessions
    assert sum(step.calls for step in result.steps) > 1.5 * sessions
