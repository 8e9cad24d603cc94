"""The metrics of `polar up`, and the queries of compose/monitoring over them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.up.running import Up
from tests.serving import free_port
from tests.waiting import until

MONITORING = Path(__file__).parents[3] / "compose" / "monitoring"
METRIC = re.compile(r"\b(?:polar|process)_[a-z_]+")
PARTS = {"proxy", "deciding", "lake", "stages", "engine", "page"}
SCRAPED_S = 60.0
ANSWER_S = 10.0


def queries() -> list[str]:
    """Those of the dashboard and of the alerts."""
    dashboard = json.loads((MONITORING / "dashboards" / "polar.json").read_text())
    alerts = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return shown + [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]


def url_of(up: Up) -> str:
    [line] = [line for line in up.output.read_text().splitlines() if line.startswith("metrics ")]
    return line.split()[1]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
        return str(answer.read().decode())


def open_page(up: Up) -> None:
    """Its process runs only while somebody looks."""
    get(up.addresses["POLAR_PAGE_URL"])


def test_every_part_tells_its_metrics_and_no_query_asks_for_another(up: Up) -> None:
    open_page(up)
    found = {family.name: family for family in text_string_to_metric_families(get(url_of(up)))}
    assert {sample.labels["part"]: sample.value for sample in found["polar_part_up"].samples} == dict.fromkeys(PARTS, 1)
    lags = {sample.labels["role"] for sample in found["polar_lag"].samples}
    assert lags == {"fanout", "coordinator", "builder", "analytics"}
    forms = {"counter": ["_total"], "histogram": ["_bucket"]}
    told = {name + end for name, family in found.items() for end in forms.get(family.type, [""])}
    asked = {metric for query in queries() for metric in METRIC.findall(query)}
    assert len(asked) > 30
    assert asked - told == set()


@pytest.mark.hard
def test_a_real_prometheus_answers_every_query(up: Up, tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    assert program is not None, "prometheus isn't on PATH: apt-get install prometheus"
    job = {"job_name": "polar", "static_configs": [{"targets": [urllib.parse.urlsplit(url_of(up)).netloc]}]}
    settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps(settings | {"rule_files": [str(MONITORING / "alerts.yml")]}))  # YAML too
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address={address}"]

    def ask(query: str) -> list[Any]:
        answer = json.loads(get(f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
        assert answer["status"] == "success", (query, answer)
        found: list[Any] = answer["data"]["result"]
        return found

    def has_scraped() -> bool:
        try:
            return [one["value"][1] for one in ask("polar_part_up")] == ["1"] * len(PARTS)
        except OSError:
            return False

    open_page(up)
    with (tmp_path / "log").open("wb") as log:
        prometheus = subprocess.Popen([program, *options], stdout=log, stderr=log)
    try:
        assert until(has_scraped, SCRAPED_S), (tmp_path / "log").read_text()
        for query in queries():
            ask(query)
        for metric in (
            "polar_slots",
            "polar_sessions",
            "polar_proxy_engine_servers_up",
            "polar_lag",
            "polar_lake_rows_total",
        ):
            assert ask(metric), metric
        assert ask('ALERTS{alertname!="PolarTasksRefused"}') == [], "nothing is wrong with this system"
    finally:
        prometheus.terminate()
        prometheus.wait(ANSWER_S)
