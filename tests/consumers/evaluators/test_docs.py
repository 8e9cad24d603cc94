"""docs/evaluators.md: its tasks are accepted, its table lists every parser, and its own evaluator works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumers.evaluators.base import Case, Evaluator
from consumers.evaluators.parsers import FORMS
from topics.environment import registry
from topics.types.errors import InputError
from topics.types.task import parse

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "evaluators.md").read_text()
TASK: dict[str, Any] = {"task_id": "t", "instruction": "do", "agent": {"harness": "pi"}}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.usefixtures("own_plug_ins")
def test_the_pages_tasks_are_accepted_and_show_every_evaluator() -> None:
    tasks = [parse(TASK | yaml.safe_load(block)) for block in blocks("yaml")]
    assert {task.evaluator.strategy for task in tasks} == set(registry.names(registry.Kind.EVALUATOR))


def test_the_pages_parsers_are_all_there_are() -> None:
    section = PAGE.partition("\n### Parsers\n")[2]
    table = section[section.index("|---|") :].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(FORMS)


async def test_the_pages_own_evaluator_judges(case: Case) -> None:
    names: dict[str, Any] = {}
    (code,) = blocks("python")
    exec(compile(code, "docs/evaluators.md", "exec"), names)
    with pytest.raises(InputError, match="must name a file"):
        names["Lines"]({})
    judge: Evaluator = names["Lines"]({"file": "a.txt", "least": 2})
    missing = await judge.evaluate(case)
    assert (missing.reward, (missing.reason or "").partition("[")[0]) == (0.0, "a.txt can't be read: ")
    await case.runtime.write_file("a.txt", b"one\n")
    assert (await judge.evaluate(case)).reason == "a.txt has 1 lines, fewer than 2"
    await case.runtime.write_file("a.txt", b"one\ntwo\n")
    assert (await judge.evaluate(case)).reward == 1.0
