"""The programs that our exports are for open them: the real `harbor view` and `inspect view bundle`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.installed import packages, python312
from tests.polar.export.commands import export
from tests.waiting import until

pytestmark = pytest.mark.hard

HARBOR = "from harbor.cli.main import app; app()"
HARBOR_PINS = Path(__file__).parents[2] / "acceptance" / "harbor" / "requirements.txt"
INSPECT = "from inspect_ai._cli.main import main; main()"
INSPECT_PINS = Path(__file__).with_name("inspect.txt")
START_S = 120.0
"""Harbor imports for ten seconds on a busy machine."""
READ = """
import sys
from inspect_ai.log import read_eval_log
for sample in read_eval_log(sys.argv[1]).samples:
    last = sample.events[-1] if sample.events else None
    ids = [] if last is None else [token.token for token in last.output.choices[0].logprobs.content]
    print(sample.id, sample.epoch, len(sample.messages), len(last.input) if last else 0, *ids)
"""


@pytest.mark.timeout(600)
def test_harbor_view_serves_an_exported_job(data: Path, tmp_path: Path) -> None:
    export("harbor", "--out", tmp_path / "jobs", "--run", "night", "--data", data)
    python = python312("Harbor")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command: list[str | Path] = [python, "-c", HARBOR, "view", tmp_path / "jobs", "--port", str(port)]
    variables = _variables(packages("harbor", HARBOR_PINS, python), tmp_path)
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, env=variables, stdout=log, stderr=subprocess.STDOUT)
    try:
        until(lambda: _is_up(port, server), START_S)
        check_served(lambda path: _get(port, path), tmp_path / "jobs" / "night")
    finally:
        server.terminate()
        server.wait(timeout=30)


def check_served(get: Callable[[str], Any], job: Path) -> None:
    (listed,) = get("/jobs")["items"]
    assert (listed["name"], listed["n_total_trials"], listed["n_errored_trials"]) == ("night", 4, 2)
    assert listed["evals"] == {"shell__night": {"metrics": [{"mean": 0.5}]}}
    trials = get("/jobs/night/trials")["items"]
    assert [(one["name"], one["task_name"], one["reward"], one["error_type"]) for one in trials] == [
        ("a.0", "a", 1.0, None),
        ("a.1", "a", 0.0, None),
        ("b.0", "b", None, "lost"),
        ("b.1", "b", None, "CancelledError"),
    ]
    served = get("/jobs/night/trials/a.0/trajectory")
    assert served == json.loads((job / "a.0" / "agent" / "trajectory.json").read_bytes())
    assert get("/jobs/night/trials/a.0/verifier-output")["stdout"] == "3 of 3 tests"
    assert get("/jobs/night/trials/a.0")["agent_execution"]["started_at"] == "2026-09-21T14:13:20Z"


def _variables(packages: Path, home: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(packages), "HOME": str(home)}


def _is_up(port: int, server: subprocess.Popen[bytes]) -> bool:
    assert server.poll() is None, "harbor view ended"
    try:
        return bool(_get(port, "/health"))
    except (OSError, HTTPException):
        return False


def _get(port: int, path: str) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", f"/api{path}")
        answer = connection.getresponse()
        assert answer.status == 200, path
        return json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.timeout(600)
def test_inspect_bundles_and_reads_an_exported_log(data: Path, tmp_path: Path) -> None:
    export("inspect", "--out", tmp_path / "logs", "--run", "night", "--data", data)
    variables = _variables(packages("inspect", INSPECT_PINS, sys.executable), tmp_path)
    folders: list[str | Path] = ["--log-dir", tmp_path / "logs", "--output-dir", tmp_path / "site"]
    subprocess.run([sys.executable, "-c", INSPECT, "view", "bundle", *folders], env=variables, check=True)
    assert (tmp_path / "site" / "index.html").exists()
    assert (tmp_path / "site" / "logs" / "night.eval").exists()
    reading: list[str | Path] = [sys.executable, "-c", READ, tmp_path / "logs" / "night.eval"]
    read = subprocess.run(reading, env=variables, check=True, capture_output=True, text=True).stdout
    assert sorted(read.splitlines()) == ["a 1 4 3 108 109", "a 2 4 3 208 209", "b 1 2 1 303 304", "b 2 0 0"]
