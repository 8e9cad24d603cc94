"""`polar tasks check` on a set with a task for each verdict, and what it leaves when it is interrupted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.acceptance.up.console import differs
from tests.acceptance.up.running import COMMAND_S, POLAR, Up, environment
from tests.acceptance.up.test_images import TASK_TOML
from tests.waiting import until

VERIFIER = 'if [ "$(cat answer.txt)" = Rhine ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'
SOLUTION = "#!/bin/bash\necho Rhine > answer.txt\n"
TASKS = {
    "crashes": ("exit 1", SOLUTION),
    "easy": ("echo 1 > /logs/verifier/reward.txt", SOLUTION),
    "good": (VERIFIER, SOLUTION),
    "unsolved": (VERIFIER, None),
    "wrong": (VERIFIER, "#!/bin/bash\necho Elbe > answer.txt\n"),
}
"""The verifier and the solution by name."""
VERDICTS = {
    "crashes": "error",
    "easy": "nothing_passes",
    "good": "usable",
    "unsolved": "no_solution",
    "wrong": "solution_fails",
}


PAGE = Path(__file__).parents[3] / "docs" / "task_sets.md"
SHOWN = re.compile(r"^\$ polar tasks check five --run five-checked .*?\n(.*?)^\$ ", re.DOTALL | re.MULTILINE)
"""The sample output of the check in docs/task_sets.md."""


def a_set(folder: Path, tasks: dict[str, tuple[str, str | None]]) -> str:
    for name, (verifier, solution) in tasks.items():
        files = {
            "task.toml": TASK_TOML,
            "instruction.md": "Name a river, in answer.txt.",
            "tests/test.sh": f"#!/bin/bash\n{verifier}\n",
            "solution/solve.sh": solution,
        }
        for file, text in files.items():
            if text is not None:
                (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / name / file).write_text(text)
        (folder / name / "environment").mkdir()
    return str(folder)


def test_each_task_gets_its_verdict_and_an_import_takes_the_usable_ones(up: Up, tmp_path: Path) -> None:
    tasks, usable = a_set(tmp_path / "set", TASKS), str(tmp_path / "usable")
    arguments = ("tasks", "check", tasks, "--max-in-flight", "4", "--run", "five-checked", "--write", usable)
    done = up.polar(*arguments, "--format", "json")
    found: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(done.stdout)}
    assert {name: row["verdict"] for name, row in found.items()} == VERDICTS, done.stdout + done.stderr
    assert done.returncode == 1
    assert list(found) == sorted(found)
    assert (found["good"]["solution"]["reward"], found["good"]["nothing"]["reward"]) == (1.0, 0.0)
    assert found["wrong"]["reason"].startswith("reward 0, not 1")
    assert "no_reward_file" in found["crashes"]["reason"]
    assert Path(usable).read_text() == "good\n"

    again = up.polar(*arguments)
    assert again.returncode == 1
    (printed,) = SHOWN.findall(PAGE.read_text())
    difference = differs(printed.splitlines(), again.stdout)
    assert difference is None, difference
    shown = up.polar(
        "trajectories", "--topic", "eval", "--run", "five-checked", "--format", "jsonl"
    ).stdout.splitlines()
    assert len(shown) == 2 * 4, "the second check ran nothing anew"
    asked = "SELECT count(*) FROM sessions WHERE run = 'five-checked' AND status IS NOT NULL"
    until(lambda: up.polar("sql", asked, "--format", "csv").stdout.split()[1:] == ["8"], COMMAND_S)

    out = str(tmp_path / "tasks.jsonl")
    imported = subprocess.run(
        [POLAR, "tasks", "import", tasks, "--harness", "pi", "--out", out, "--only", usable],
        capture_output=True, text=True, timeout=COMMAND_S, env=environment(), check=False,
    )  # fmt: skip
    assert imported.returncode == 0, imported.stderr
    (line,) = Path(out).read_text().splitlines()
    assert json.loads(line)["task_id"] == "good"


WITHOUT_REWARD = {
    "crashed": ("kill -9 $$", "no_reward_file"),
    "hung": ("sleep 600", "tests_timeout"),
    "nan": ("echo nan > /logs/verifier/reward.txt", "bad_reward"),
}
"""The verifier and its error by name."""


def test_a_verifier_that_leaves_no_reward_gives_null_with_the_kind_evaluation(up: Up, tmp_path: Path) -> None:
    tasks = a_set(tmp_path / "set", {name: (verifier, SOLUTION) for name, (verifier, _) in WITHOUT_REWARD.items()})
    template = tmp_path / "template.yaml"
    template.write_text("evaluator: {config: {timeout_s: 5}}\n")
    done = up.polar("tasks", "check", tasks, "--template", str(template), "--run", "null", "--format", "json")
    found = {
        row["name"]: (row["solution"]["reward"], row["nothing"]["reward"], row["reason"])
        for row in json.loads(done.stdout)
    }
    assert found.keys() == WITHOUT_REWARD.keys(), done.stderr
    for name, (_, code) in WITHOUT_REWARD.items():
        assert found[name][:2] == (None, None)
        assert found[name][2].startswith(f"solution: no reward: evaluation/{code}: "), found[name]


def test_what_ended_before_an_interrupt_is_written(up: Up, tmp_path: Path) -> None:
    tasks = a_set(tmp_path / "set", {"good": (VERIFIER, SOLUTION), "slow": (VERIFIER, "#!/bin/bash\nsleep 600\n")})
    usable = tmp_path / "usable"
    process = subprocess.Popen(
        [POLAR, "tasks", "check", tasks, "--run", "cut", "--write", str(usable), "--format", "json", "--data", str(up.data)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    try:
        until(lambda: usable.exists() and usable.read_text() == "good\n", COMMAND_S)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=COMMAND_S)
    finally:
        process.kill()
    assert [(row["name"], row["verdict"]) for row in json.loads(out)] == [("good", "usable")]
    assert "1 of 2 tasks have no verdict yet; the same command with --run cut goes on" in err
    assert process.returncode == 130
    (slow,) = [
        row["task_id"]
        for row in json.loads(up.polar("status", "--run", "cut", "--format", "json").stdout)
        if row["phases"]
    ]
    assert up.polar("cancel", slow).returncode == 0
