"""Each alert fires on what it is about and on nothing else, as Prometheus' own promtool finds."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.planted import HEALTHY, PLANTED, Series

ROOT = Path(__file__).parents[2]
RULES = ROOT / "compose" / "monitoring" / "alerts.yml"
PROMTOOL_S = 60.0


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return found


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    assert program is not None, "promtool isn't on PATH: apt-get install prometheus"
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=PROMTOOL_S, check=False)


def case(planted: Series, firing: dict[str, list[str]]) -> dict[str, Any]:
    """A test of promtool: the names of the alerts that fire at each time."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in (HEALTHY | planted).items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": at,
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names],
            }
            for at, names in firing.items()
        ],
    }


def test_every_alert_has_its_words_and_its_planted_series() -> None:
    assert {rule["alert"] for rule in rules()} == set(PLANTED)
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "action"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]


def test_the_docs_list_every_alert() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `Polar")]
    assert listed == [rule["alert"] for rule in rules()]


@pytest.mark.contract
def test_prometheus_reads_the_configuration() -> None:
    checked = promtool("check", "config", "--syntax-only", RULES.with_name("prometheus.yml"))
    assert checked.returncode == 0, checked.stderr


@pytest.mark.hard
def test_each_alert_fires_on_what_it_is_about_and_on_nothing_else(tmp_path: Path) -> None:
    checked = promtool("check", "rules", RULES)
    assert checked.returncode == 0, checked.stderr + checked.stdout
    quiet = case({}, {"9m": [], "30m": [], "59m": []})
    each = [case(planted, {"9m": [], "59m": [name]}) for name, planted in PLANTED.items()]
    file = tmp_path / "alerts_test.yml"
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [quiet, *each]}
    file.write_text(json.dumps(document))  # YAML too
    tested = promtool("test", "rules", file)
    assert tested.returncode == 0, tested.stderr + tested.stdout


def test_metrics_keep_their_own_label_role_in_the_stack() -> None:
    """Targets get the label `role`, and some metrics have one: with `honor_labels` it isn't renamed to `exported_role`."""
    jobs = yaml.safe_load((RULES.parent / "prometheus.yml").read_text())["scrape_configs"]
    labelled = [job for job in jobs if any(one["target_label"] == "role" for one in job["relabel_configs"])]
    assert labelled == jobs
    assert [job["honor_labels"] for job in labelled] == [True, True]
