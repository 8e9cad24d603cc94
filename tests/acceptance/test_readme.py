"""What the README shows is so: its task is the one in examples/, and its commands do what it says. The engine is the scripted one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
READY_S = 120.0
COMMAND_S = 120.0


def polar(folder: Path, command: str) -> list[str]:
    """A command of the README, with POLAR_DATA for what `.polar` in the clone would be."""
    program = [sys.executable, "-m", "polar.cli", *command.split()]
    environment = environ(folder)
    ended = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=COMMAND_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def environ(folder: Path) -> dict[str, str]:
    return {n: v for n, v in os.environ.items() if not n.startswith("POLAR_") or n == "POLAR_CACHE"} | {
        "POLAR_DATA": str(folder / "data")
    }


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Path]:
    """`polar up` as the README starts it; the folder that holds its data."""
    process = subprocess.Popen([sys.executable, "-m", "polar.cli", "up"], cwd=ROOT, env=environ(tmp_path))
    try:
        deadline = time.monotonic() + READY_S
        while not (tmp_path / "data" / "polar.env").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield tmp_path
    finally:
        process.terminate()
        process.wait()


def test_the_task_of_the_readme_is_the_example() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert shown == (ROOT / "examples" / "hello" / "task.yaml").read_text()


def test_the_commands_of_your_own_task_give_its_trajectories(up: Path) -> None:
    commands = re.findall(r"^    \.venv/bin/polar (.*)$", README, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["submit", "trajectories", "trajectories"]
    _, table, lines = (polar(up, command) for command in commands)
    rows = [line.split() for line in table if line.startswith("hello-1.")]
    assert [row[:4] for row in rows] == [[f"hello-1.{index}", "COMPLETED", "1", "2"] for index in range(2)]
    assert [row[6] for row in rows] == ["1", "1"], "one trace each"
    assert len(lines) == 2


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:docs|examples|polar|tests)/[\w./]+)`", README))))
def test_the_readme_names_what_exists(path: str) -> None:
    assert (ROOT / path).exists()
