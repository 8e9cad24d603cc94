"""Tasks with an image, from a Harbor folder to the reward, in cells: no Docker, no registry."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.up.conftest import IMAGE
from tests.acceptance.up.running import COMMAND_S, POLAR, Up, environment
from tests.waiting import until

TEMPLATE = "agent: {{harness: shell, custom_shell: {{command: '{command}'}}}}\nruntime: {{verifier_sees: {seen}}}\n"
TASK_TOML = f"""\
schema_version = "1.4"
[environment]
docker_image = "{IMAGE}"
network_mode = "no-network"
"""
SEPARATE = """\
[verifier]
environment_mode = "separate"
"""
TEST_SH = """\
#!/bin/bash
if [ "$(cat answer.txt)" = Rhine ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def harbor_folder(folder: Path, name: str) -> Path:
    """A set of one task."""
    task = folder / name
    (task / "environment").mkdir(parents=True)
    (task / "tests").mkdir()
    (task / "task.toml").write_text(TASK_TOML)
    (task / "instruction.md").write_text("Name a river, in answer.txt.")
    (task / "tests/test.sh").write_text(TEST_SH)
    return folder


@pytest.mark.parametrize(
    ("name", "command", "seen", "reward"),
    [
        ("solved", "echo Rhine > answer.txt", "everything", 1.0),
        ("nothing", "true", "everything", 0.0),
        ("planted", "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt", "everything", 0.0),
        ("faked", 'printf "#!/bin/sh\\necho Rhine" > /usr/bin/cat', "workspace", 0.0),
    ],
)
def test_a_harbor_task_with_an_image_gets_the_reward_that_its_tests_give(
    up: Up, tmp_path: Path, name: str, command: str, seen: str, reward: float
) -> None:
    harbor_folder(tmp_path / "mine", f"river-{name}")
    (row,) = run_harbor(up, tmp_path / "mine", TEMPLATE.format(command=command, seen=seen), f"river-{name}")
    assert (row["status"], row["reward"]) == ("COMPLETED", reward), row


def test_a_separate_verifier_sees_the_artifacts_alone(up: Up, tmp_path: Path) -> None:
    """The agent's programs aren't in the verifier's sandbox, and one of its two files isn't, either."""
    task = harbor_folder(tmp_path / "mine", "river-apart") / "river-apart"
    (task / "task.toml").write_text('artifacts = ["/srv/answer.txt"]\n' + TASK_TOML + SEPARATE)
    (task / "tests/test.sh").write_text(
        '#!/bin/bash\ncd /srv && [ "$(cat answer.txt)" = Rhine ] && [ ! -e other.txt ] && echo 1 > /logs/verifier/reward.txt\n'
    )
    command = "mkdir -p /srv; echo Rhine > /srv/answer.txt; touch /srv/other.txt; printf false > /usr/bin/cat"
    template = f"agent: {{harness: shell, custom_shell: {{command: '{command}'}}}}\n"
    (row,) = run_harbor(up, tmp_path / "mine", template, "river-apart")
    assert (row["status"], row["reward"]) == ("COMPLETED", 1.0), row


def run_harbor(up: Up, folder: Path, template: str, task: str) -> list[dict[str, object]]:
    """The trajectories of a set of one task, imported with the template."""
    tasks, file = folder.parent / "tasks.jsonl", folder.parent / "template.yaml"
    file.write_text(template)
    imported = subprocess.run(
        [POLAR, "tasks", "import", str(folder), "--template", str(file), "--out", str(tasks)],
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        env=environment(),
        check=False,
    )
    assert imported.returncode == 0, imported.stdout + imported.stderr
    submitted = up.polar("submit", str(tasks), "--wait")
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    return trajectories(up, task)


def trajectories(up: Up, task: str) -> list[dict[str, object]]:
    shown = up.polar("trajectories", "--format", "jsonl")
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    return [row for row in rows if row["session_id"].startswith(f"{task}.")]


def test_a_real_harness_works_in_an_image(up: Up) -> None:
    body = {
        "task_id": "pi-in-an-image",
        "instruction": "list the files",
        "agent": {"harness": "pi"},
        "runtime": {"image": IMAGE, "prepare": [{"type": "exec", "command": "touch a.py"}]},
    }
    submitted = up.polar("submit", "-", "--wait", stdin=json.dumps(body))
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    (row,) = trajectories(up, "pi-in-an-image")
    assert (row["status"], row["reward"]) == ("COMPLETED", 1.0), row
    shown = up.polar("show", "pi-in-an-image.0")
    assert "There is one file, a.py." in shown.stdout, shown.stdout


@pytest.mark.hard
@pytest.mark.timeout(900)  # it may be the first that waits for the system
def test_one_preparation_serves_two_hundred_sessions_without_a_network(up: Up) -> None:
    """Each session shows the stamp that the preparation left, and finds no way out: equal logs are equal blobs."""
    (host, _, port) = up.addresses["POLAR_KAFKA"].rpartition(":")
    body = {
        "task_id": "prepared-once",
        "instruction": "read the stamp",
        "num_samples": 200,
        "agent": {
            "harness": "shell",
            "custom_shell": {
                "command": f"cat /opt/stamp; (: <> /dev/tcp/{host}/{port}) 2>&- && echo reached || echo alone"
            },
        },
        "runtime": {
            "image": IMAGE,
            "network": "none",
            "prepare": [{"type": "exec", "command": "mkdir -p /opt; sleep 1; echo $RANDOM$RANDOM$RANDOM > /opt/stamp"}],
        },
    }
    began = time.monotonic()
    submitted = up.polar("submit", "-", "--wait", stdin=json.dumps(body))
    print(f"200 sessions in {time.monotonic() - began:.1f} s")
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    rows = trajectories(up, "prepared-once")
    assert Counter(row["status"] for row in rows) == {"COMPLETED": 200}
    question = (
        "SELECT count(*), count(DISTINCT artifacts['agent_log']) FROM trajectories WHERE task_id = 'prepared-once'"
    )

    def answer() -> str:
        return up.polar("sql", question, "--format", "csv").stdout.splitlines()[-1]

    until(lambda: answer().startswith("200,"), 60.0)
    assert answer() == "200,1", "one stamp, so one preparation"
    shown = up.polar("show", "prepared-once.0", "--artifact", "agent_log")
    assert shown.stdout.splitlines()[1:] == ["alone"], shown.stdout
