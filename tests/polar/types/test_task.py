"""The canonical body: what tells a duplicate from a clash of ids, and what workers parse again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polar.types.task import parse

BODY: dict[str, Any] = {
    "task_id": "t",
    "instruction": "mend it",
    "agent": {"harness": "shell", "custom_shell": {"command": "true"}},
}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"timeout_seconds": 5},
        {"timeouts": {"run": 7}},
        {"evaluator": None, "runtime": None},
        {"sampling": {"temperature": 1}, "metadata": {"ä": [1, 2.5, None]}},
    ],
)
def test_a_canonical_body_parses_to_a_task_with_the_same_canonical_body(more: dict[str, Any]) -> None:
    task = parse(BODY | more)
    again = parse(json.loads(task.canonical()))
    assert again.canonical() == task.canonical()
    assert again.run_budget_s == task.run_budget_s


def test_both_spellings_of_the_run_budget_are_one_body() -> None:
    assert parse(BODY | {"timeout_seconds": 60}).canonical() == parse(BODY | {"timeouts": {"run": 60.0}}).canonical()


def test_a_default_written_out_is_the_same_body() -> None:
    assert parse(BODY | {"num_samples": 1, "timeouts": {"init": 600}}).canonical() == parse(BODY).canonical()
