"""Rows of NeMo Gym as tasks of one sample, and their ids."""

from __future__ import annotations

import re
from typing import Any

import pytest

from polar.nemo_gym.rollouts import task_id_for, task_of
from topics.types.errors import InputError
from topics.types.ids import TASK_ID

TEMPLATE = {"agent": {"harness": "pi"}, "evaluator": {"strategy": "session_completed"}}
ROW: dict[str, Any] = {
    "responses_create_params": {"input": "say hello", "temperature": 0.5},
    "expected_answer": "7",
    "_ng_task_index": 3,
    "_rowidx": 9,
}


def test_a_row_is_a_task_of_one_sample_without_the_collector_s_fields() -> None:
    task = task_of(ROW, TEMPLATE, run="r1", rollout_id="3-0")
    assert (task.task_id, task.run, task.num_samples, task.instruction) == ("r1-3-0", "r1", 1, "say hello")
    assert task.sampling.temperature == 0.5
    assert task.metadata["nemo_gym"] == {"expected_answer": "7"}


def test_a_row_s_own_task_takes_the_place_of_the_template_s() -> None:
    own = {"instruction": "say {{word}} twice", "agent": {"harness": "codex"}}
    row = {"responses_create_params": {"input": []}, "word": "no", "polar_task": own}
    task = task_of(row, TEMPLATE, run="r1", rollout_id="a")
    assert (task.instruction, task.agent.harness) == ("say no twice", "codex")


def test_the_same_rollout_is_the_same_task_and_one_without_an_id_is_new() -> None:
    again = [task_of(ROW, TEMPLATE, run="r1", rollout_id="3-0").canonical() for _ in range(2)]
    assert again[0] == again[1]
    new = {task_id_for("r1", None) for _ in range(2)}
    assert len(new) == 2


@pytest.mark.parametrize("rollout_id", ["a.b", "x" * 300, "3-0-a2"])
def test_every_rollout_id_makes_a_valid_task_id(rollout_id: str) -> None:
    assert re.fullmatch(TASK_ID, task_id_for("r" * 32, rollout_id))


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"polar_task": 7}, "polar_task"),
        ({"polar_task": {"task_id": "mine"}}, "task_id"),
        ({"polar_task": {"output_topic": "mine"}}, "output_topic"),
        ({"polar_task": {"agent": {"harness": "nobody"}}}, "agent.harness"),
        ({"response": {"id": "r"}}, "response"),
    ],
)
def test_what_a_row_has_wrong_is_named(more: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        task_of(ROW | more, TEMPLATE, run="r1", rollout_id="3-0")
    assert refused.value.field == field
