"""docs/evaluators.md: its tasks are accepted, its tables list every setting, and its own evaluator works."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumers.evaluators import composite, script, swebench, test_on_output
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


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Polar with the plug-ins of this tree's pyproject.toml, as `make install` registers them."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = tmp_path / "polar_rollouts-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: polar-rollouts\nVersion: 0.1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()


@pytest.mark.usefixtures("_installed")
def test_the_pages_tasks_are_accepted_and_show_every_evaluator() -> None:
    tasks = [parse(TASK | yaml.safe_load(block)) for block in blocks("yaml")]
    assert {task.evaluator.strategy for task in tasks} == set(registry.names(registry.Kind.EVALUATOR))


@pytest.mark.parametrize(
    ("head", "settings"),
    [
        ("## `test_on_output`", test_on_output.SETTINGS),
        ("## `script`", script.SETTINGS),
        ("## `swebench`", swebench.SETTINGS),
        ("## `composite`", composite.PART_SETTINGS),
        ("### Parsers", tuple(FORMS)),
    ],
)
def test_the_pages_settings_are_all_there_are(head: str, settings: tuple[str, ...]) -> None:
    section = PAGE.partition(f"\n{head}\n")[2]
    table = section[section.index("|---|") :].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == settings


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
