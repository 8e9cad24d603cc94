"""`polar up` on one small disk that another program fills while sessions run: they wait, and with room each ends once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from polar.embedded import disk
from tests.acceptance.up.running import STOP_S, Up, engine_record
from tests.small_disks import fill, needs_root, small_disk
from tests.waiting import until

pytestmark = needs_root

AGENT = (Path(__file__).parent / "agent.py").read_text()
SAMPLES = 4
NAMED_S = 120.0
ENDED_S = 240.0
"""58 s on a machine whose cores were all busy."""


def submit(up: Up, name: str) -> None:
    code = {"AGENT": AGENT, "TURNS": "12", "PAUSE_S": "0.5"}
    agent = {"harness": "shell", "custom_shell": {"command": 'python3 -c "$AGENT"'}, "env": code}
    submitted = up.submit(name, "", num_samples=SAMPLES, agent=agent)
    assert submitted.returncode == 0, submitted.stderr


def tasks(up: Up) -> list[dict[str, Any]]:
    shown = up.polar("status", "--format", "json")
    rows: list[dict[str, Any]] = json.loads(shown.stdout) if shown.returncode == 0 else []
    return rows


@pytest.mark.timeout(600)
def test_a_disk_that_another_program_fills_costs_time_alone(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data", 800) as data:
        up = Up(tmp_path)
        try:
            submit(up, "before")
            until(lambda: len(engine_record(up)) >= SAMPLES, NAMED_S, every_s=0.2)
            fill(data / "another program")
            until(lambda: "is full. Make room" in up.output.read_text(), NAMED_S, every_s=0.2)
            assert str(data) in up.output.read_text()
            assert disk.is_full(data)
            (data / "another program").unlink()
            until(lambda: len(tasks(up)) == 1, ENDED_S, every_s=1.0)
            submit(up, "after")
            until(lambda: [row["ended"] for row in tasks(up)] == [SAMPLES, SAMPLES], ENDED_S, every_s=1.0)
            shown = up.polar("trajectories", "--format", "jsonl")
            rows = [json.loads(line) for line in shown.stdout.splitlines()]
            expected = [f"{name}.{sample}" for name in ("before", "after") for sample in range(SAMPLES)]
            assert Counter(row["session_id"] for row in rows) == dict.fromkeys(expected, 1)
            assert {row["status"] for row in rows} == {"COMPLETED"}
            up.process.terminate()
            assert up.process.wait(STOP_S) == 0, up.output.read_text()
        finally:
            up.process.kill()
            up.process.wait()
