"""docs/task_sets.md lists what the mapping does."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from polar.tasks import row_mapping
from polar.tasks.harbor_rules import FIELDS, FILES, Outcome, Rule
from polar.tasks.row_options import RowOptions
from polar.tasks.rows import Row
from tests.polar.tasks import swe
from tests.polar.tasks.row_table import table
from tests.polar.tasks.writing import mapped_task, write
from topics.types.task import TaskRequest

PAGE = (Path(__file__).parents[3] / "docs" / "task_sets.md").read_text()


TEMPLATE, *ROW_TEMPLATES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def row(name: str, rule: Rule) -> str:
    becomes = f"`{rule.becomes}`" if rule.outcome is Outcome.CARRIED else rule.becomes
    return f"| `{name}` | {rule.outcome} | {becomes} | {', '.join(f'`{field}`' for field in rule.replaced_by)} |"


def test_the_table_of_fields_is_the_mapping_s_own() -> None:
    rows = [row(name, rule) for name, rule in (*FIELDS.items(), *FILES.items())]
    assert "\n".join(rows) in PAGE


def test_the_table_of_rows_fields_is_the_mapping_s_own() -> None:
    assert "\n".join(table()) in PAGE


@pytest.mark.usefixtures("swebench_is_installed")
def test_its_templates_of_rows_make_task_requests() -> None:
    asked = {"input": [{"role": "user", "content": "What is 1 + 2?"}]}
    rows: tuple[dict[str, Any], ...] = (
        swe.a_row(test_command="true", parser="pytest"),
        {"number": 3, "a": 1, "b": 2, "sum": 3},
        {"responses_create_params": asked, "expected_answer": "3"},
    )
    of_issue, of_sum, of_nemo = (
        row_mapping.mapped(Row("place", fields), "name", yaml.safe_load(template), RowOptions()).request()
        for fields, template in zip(rows, ROW_TEMPLATES, strict=True)
    )
    assert isinstance(of_issue, TaskRequest), of_issue
    assert of_issue.instruction == "Solve this issue of mine/calc. Don't change the tests.\n\npower(2, 3) is 6.\n"
    assert isinstance(of_sum, TaskRequest), of_sum
    assert (of_sum.task_id, of_sum.evaluator.config["test_command"]) == ("sum-3", "test $(cat answer.txt) = 3")
    assert isinstance(of_nemo, TaskRequest), of_nemo
    assert of_nemo.instruction.startswith("What is 1 + 2?\n\nWrite the answer")
    assert of_nemo.evaluator.env == {"EXPECTED": "3"}


def test_its_template_makes_a_task_request(tmp_path: Path) -> None:
    write(tmp_path, solution__solve_sh="true")
    config = {"verifier": {"environment_mode": "separate"}, "artifacts": ["/app/textcraft/actions.jsonl"]}
    request = mapped_task(tmp_path, config, yaml.safe_load(TEMPLATE)).request()
    assert isinstance(request, TaskRequest), request
    assert [action.source for action in request.runtime.eval_prepare or ()] == [str(tmp_path / "tests")]


@pytest.mark.contract
@pytest.mark.parametrize(
    "left",
    [
        "mkdir -p logs/verifier && echo 1 | tee logs/verifier/reward.json >logs/verifier/reward.txt",
        "mkdir -p logs/verifier/reward.json",
        "touch logs",
        "mkdir -p mine/verifier && echo 1 >mine/verifier/reward.json && ln -s mine logs",
        "ln -s nowhere logs",
    ],
)
@pytest.mark.parametrize(
    ("test", "rewards"),
    [
        ('echo 0.25 >"$PLATOON_SANDBOX_ROOT/logs/verifier/reward.json"', {"reward.json": "0.25\n"}),
        ("true", {}),
        ('echo 1 >"$PLATOON_SANDBOX_ROOT/logs/verifier/reward.json"; exit 1', {}),
    ],
)
def test_its_template_takes_the_reward_of_the_tests_alone(
    tmp_path: Path, left: str, test: str, rewards: dict[str, str]
) -> None:
    """Whatever the agent left at `logs`. A failure is the reward 0, as no setting says otherwise."""
    config = yaml.safe_load(TEMPLATE)["evaluator"]["config"]
    workspace, folder = tmp_path / "workspace", tmp_path / "rewards"
    (workspace / "tests").mkdir(parents=True)
    (workspace / "tests/test.sh").write_text(test)
    folder.mkdir()
    subprocess.run(["bash", "-c", left], cwd=workspace, check=True, timeout=60)
    environment = {**os.environ, "POLAR_REWARD_DIR": str(folder)}
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", config["command"]], cwd=workspace, env=environment, check=False, timeout=60
    )
    assert {file.name: file.read_text() for file in folder.iterdir()} == rewards
    assert (ended.returncode == 0) == bool(rewards)
