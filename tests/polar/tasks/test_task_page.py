"""docs/task.md says every field that there is, as the types that check a task have it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from polar.cli.tasks import app
from polar.tasks import task_page
from topics.environment import registry
from topics.types.agent import AgentSpec
from topics.types.building import Filters, MergingOptions
from topics.types.runtime import RuntimeSpec
from topics.types.task import EvaluatorSpec, LimitsSpec, SamplingSpec, TaskRequest, parse

PAGE = Path(__file__).parents[3] / "docs" / "task.md"
MODELS = (TaskRequest, RuntimeSpec, AgentSpec, EvaluatorSpec, SamplingSpec, LimitsSpec, MergingOptions, Filters)


@pytest.mark.usefixtures("own_plug_ins")
def test_the_page_is_what_the_command_prints() -> None:
    printed = CliRunner().invoke(app, ["docs"])
    assert printed.exit_code == 0, printed.output
    assert PAGE.read_text() == printed.output, "a task has changed: polar tasks docs > docs/task.md"


def test_its_example_is_a_task() -> None:
    task = parse(yaml.safe_load(task_page.EXAMPLE))
    assert task.evaluator.strategy == "test_on_output"
    assert task_page.EXAMPLE in PAGE.read_text()


@pytest.mark.usefixtures("own_plug_ins")
def test_every_field_and_plug_in_stands_there() -> None:
    page = PAGE.read_text()
    for model in MODELS:
        for name in model.model_fields:
            assert f"\n| `{name}` | " in page
    for kind in (registry.Kind.HARNESS, registry.Kind.EVALUATOR, registry.Kind.BUILDER):
        for name in registry.names(kind):
            assert f"\n### {kind} {name}\n" in page
    for backend in registry.names(registry.Kind.RUNTIME):
        assert f"\n| `{backend}` | " in page


def test_every_field_says_what_it_means() -> None:
    lines = PAGE.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| `") and line.count(" | ") >= 4]
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |") and "[object]" not in row] == []


def test_types_defaults_and_bounds_are_the_types_own() -> None:
    rows = {line.split("`")[1]: line for line in PAGE.read_text().splitlines() if line.startswith("| `")}
    assert rows["num_samples"].startswith("| `num_samples` | int | `1` | ≥ 1, ≤ 1,024 | ")
    assert rows["task_id"].startswith("| `task_id` | text | required | matches `^[A-Za-z0-9]")
    assert rows["mode"].startswith('| `mode` | `train`, `eval` | `"train"` |  | ')
    assert rows["parts"].startswith(
        "| `parts` | list of [object](#evaluatorconfigparts) | required | not empty, at most 20 entries |"
    )


def test_every_link_to_a_section_leads_somewhere() -> None:
    page = PAGE.read_text()
    anchors = {task_page.anchor(line.lstrip("# ")) for line in page.splitlines() if line.startswith("#")}
    for other in ("evaluators.md", "builder.md"):
        linked = [part.partition(")")[0] for part in (PAGE.parent / other).read_text().split("(task.md#")[1:]]
        assert linked
        assert set(linked) <= anchors
    assert {part.partition(")")[0] for part in page.split("](#")[1:]} <= anchors
