"""`python -m examples.swe`: its table, its scripts, and in tier hard a task of each language with the real pi and Codex.

Where Go's library isn't compiled in its own folder (examples/swe/README.md), each session of a Go task takes a minute of two cores.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from examples.swe.__main__ import rewards_of, table
from examples.swe.scripts import TOOLS, VARIANTS, scripts
from polar.scripted.scripts import load
from tests.acceptance.up.running import environment
from tests.examples.swe import NAMES, TASKS

RUN = ("base64", "csv", "durations", "wordwrap")
RUN_S = 600.0


def test_the_table_has_the_rewards_of_each_task_and_harness_in_the_order_of_the_samples() -> None:
    found = [
        {"task_id": "csv-pi-abc", "sample_index": 1, "reward": 0.5},
        {"task_id": "csv-pi-abc", "sample_index": 0, "reward": 1.0},
        {"task_id": "csv-codex-abc", "sample_index": 0, "reward": None},
        {"task_id": "csv-pi-older", "sample_index": 0, "reward": 0.0},
    ]
    rewards = rewards_of(found, ["csv", "lru"], ["pi", "codex"], "abc")
    assert rewards == {"csv": [[1.0, 0.5], [None]], "lru": [[], []]}
    assert table(rewards, ["pi", "codex"]).splitlines() == [
        "task  pi     codex",
        "──────────────────",
        "csv   1 0.5  –",
        "lru",
    ]


def test_the_scripted_engine_takes_the_scripts_and_no_two_tasks_share_one(tmp_path: Path) -> None:
    file = tmp_path / "scripts.yaml"
    file.write_text(yaml.safe_dump_all([script for name in NAMES for script in scripts(TASKS / name)]))
    found = load([file])
    assert len({script.match for script in found}) == len(NAMES)
    assert len(found) == len(NAMES) * len(TOOLS)
    assert {len(script.variants) for script in found} == {len(VARIANTS)}


@pytest.mark.hard
@pytest.mark.timeout(RUN_S + 60)
def test_tasks_get_the_rewards_that_their_scripts_mean(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.swe", "--data", str(tmp_path / "data"), *(f"--task={name}" for name in RUN)],
        cwd=TASKS.parents[2],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    rows = [line.split() for line in done.stdout.splitlines()[-len(RUN) :]]
    assert rows == [[name, *["1", "0", "0"] * len(TOOLS)] for name in RUN]
