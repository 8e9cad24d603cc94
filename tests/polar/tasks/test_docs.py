"""docs/task_sets.md lists what the mapping does."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from polar.tasks.harbor_mapping import FIELDS, FILES, Outcome, Rule
from tests.polar.tasks.writing import mapped_task, write
from topics.types.task import TaskRequest

PAGE = (Path(__file__).parents[3] / "docs" / "task_sets.md").read_text()


def row(name: str, rule: Rule) -> str:
    becomes = f"`{rule.becomes}`" if rule.outcome is Outcome.CARRIED else rule.becomes
    return f"| `{name}` | {rule.outcome} | {becomes} | {', '.join(f'`{field}`' for field in rule.replaced_by)} |"


def test_the_table_of_fields_is_the_mapping_s_own() -> None:
    rows = [row(name, rule) for name, rule in (*FIELDS.items(), *FILES.items())]
    assert "\n".join(rows) in PAGE


def test_its_template_makes_a_task_request(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    write(tmp_path, solution__solve_sh="true")
    config = {"verifier": {"environment_mode": "separate"}, "artifacts": ["/app/textcraft/actions.jsonl"]}
    request = mapped_task(tmp_path, config, yaml.safe_load(block)).request()
    assert isinstance(request, TaskRequest), request
    assert [action.source for action in request.runtime.eval_prepare or ()] == [str(tmp_path / "tests")]
