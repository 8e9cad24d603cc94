"""docs/evaluators.md: its task's settings are accepted, and its own evaluator works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumers.evaluators.base import Case, Evaluator
from consumers.evaluators.test_on_output import SETTINGS
from topics.types.errors import InputError
from topics.types.task import parse

pytestmark = pytest.mark.contract

PAGE = (Path(__file__).parents[3] / "docs" / "evaluators.md").read_text()
TASK: dict[str, Any] = {"task_id": "t", "instruction": "do", "agent": {"harness": "pi"}}


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_pages_settings_are_all_there_are() -> None:
    parse(TASK | yaml.safe_load(block("yaml")))
    table = PAGE.split("| setting | meaning |")[1].split("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == SETTINGS


async def test_the_pages_own_evaluator_judges(case: Case) -> None:
    names: dict[str, Any] = {}
    exec(compile(block("python"), "docs/evaluators.md", "exec"), names)
    with pytest.raises(InputError, match="must name a file"):
        names["Lines"]({})
    judge: Evaluator = names["Lines"]({"file": "a.txt", "least": 2})
    missing = await judge.evaluate(case)
    assert (missing.reward, (missing.reason or "").partition("[")[0]) == (0.0, "a.txt can't be read: ")
    await case.runtime.write_file("a.txt", b"one\n")
    assert (await judge.evaluate(case)).reason == "a.txt has 1 lines, fewer than 2"
    await case.runtime.write_file("a.txt", b"one\ntwo\n")
    assert (await judge.evaluate(case)).reward == 1.0
