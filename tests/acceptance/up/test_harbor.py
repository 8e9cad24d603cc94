"""Harbor's own `harbor run`, 0.24, with our plug-in: its oracle, and its agent `codex` with the real CLI, against the running system.

Harbor has a Python and packages of its own. Trials run in bubblewrap, since no container image can be pulled here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from consumers.harnesses.base import harness_of
from consumers.harnesses.cli import CliHarness
from tests.acceptance.up.running import Up, engine_record, environment
from tests.installed import packages, python312
from tests.waiting import until
from topics.types.agent import AgentSpec

pytestmark = [pytest.mark.hard, pytest.mark.timeout(1000)]

ROOT = Path(__file__).parents[3]
PINS = ROOT / "tests" / "acceptance" / "harbor" / "requirements.txt"
JOB_S = 300.0
BUILT_S = 60.0
CALLED_S = 120.0
"""Until Codex's first call, on a busy machine."""
TEST = """\
#!/bin/bash
if [ "$(cat /app/answer)" = 7 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
"""
UNHEALTHY = '[environment.healthcheck]\ncommand = "false"\nretries = 1\nstart_period_sec = 0\n'


@dataclass(frozen=True)
class Harbor:
    """Harbor in a folder of its own."""

    python: str
    packages: Path
    folder: Path
    data: Path

    def task(self, name: str, instruction: str, more: str = "") -> Path:
        """A task of Harbor's: write 7 into /app/answer."""
        task = self.folder / "tasks" / name
        for part in ("environment", "solution", "tests"):
            (task / part).mkdir(parents=True)
        (task / "task.toml").write_text(f'schema_version = "1.4"\n{more}')
        (task / "instruction.md").write_text(instruction)
        (task / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\n")
        (task / "solution" / "solve.sh").write_text("#!/bin/bash\necho 7 >/app/answer\n")
        (task / "tests" / "test.sh").write_text(TEST)
        return task

    @contextmanager
    def running(self, job: str, tasks: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
        """`harbor run` of these tasks with our plug-in. It is killed at the end of the block."""
        command = [
            self.python,
            "-c",
            "from harbor.cli.main import app; app()",
            "run",
            "--path",
            str(tasks),
            "--yes",
            "--quiet",
        ]
        command += ["--job-name", job, "--jobs-dir", str(self.folder / "jobs")]
        command += ["--plugin", "polar.harbor:Plugin", "--plugin-kwarg", f"data={self.data}"]
        command += ["--env", "tests.acceptance.harbor.bubblewrap:Bubblewrap", *options]
        paths = os.pathsep.join([str(ROOT), str(self.packages)])
        (self.folder / "home").mkdir(exist_ok=True)
        (self.folder / "tmp").mkdir(exist_ok=True)
        own = {"HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "tmp"), "PYTHONPATH": paths}
        offline = {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        # The first job compiles what Harbor imports, which takes a minute or more, and the others find it compiled.
        compiled = {"PYTHONDONTWRITEBYTECODE": ""}
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment() | own | offline | compiled,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, job: str, tasks: Path, *options: str) -> dict[str, dict[str, Any]]:
        """A whole job: its trials' results, by the trial's name."""
        with self.running(job, tasks, *options) as process:
            output, _ = process.communicate(timeout=JOB_S)
        assert process.returncode == 0, output
        results = [json.loads(file.read_text()) for file in (self.folder / "jobs" / job).glob("*/result.json")]
        return {result["trial_name"]: result for result in results}


@pytest.fixture
def harbor(up: Up, tmp_path: Path) -> Harbor:
    python = python312("Harbor")
    return Harbor(python, packages("harbor", PINS, python), tmp_path, up.data)


@pytest.fixture
def codex() -> list[str]:
    """Options of a job with Harbor's agent `codex`, which finds the real CLI installed."""
    harness = harness_of(AgentSpec(harness="codex"))
    assert isinstance(harness, CliHarness)
    folder = harness.cli.install(print)
    node, program = harness.cli.command()
    shims = {"codex": f"{node} {program}"}
    read_only = [str(folder), str(Path(node).parents[1])]
    kwargs = ["--ek", f"shims={json.dumps(shims)}", "--ek", f"read_only={json.dumps(read_only)}"]
    return ["--agent", "polar.harbor:codex", "--model", "openai/any", *kwargs]


def trajectories(up: Up, run: str, number: int) -> list[dict[str, Any]]:
    """The run's trajectories, once there are that many."""

    def found() -> list[dict[str, Any]]:
        done = up.polar("trajectories", "--run", run, "--format", "jsonl")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    until(lambda: len(found()) >= number, BUILT_S, every_s=1.0)
    return found()


def sampled(trajectory: dict[str, Any]) -> list[list[int]]:
    """The sampled token ids of each call in its traces."""
    return [
        trace["token_ids"][call["start"] : call["end"]] for trace in trajectory["traces"] for call in trace["calls"]
    ]


def answered(up: Up, trajectory: dict[str, Any]) -> list[list[int]]:
    """The token ids that the engine sampled for it, by the engine's own record."""
    return [call["token_ids"] for call in engine_record(up) if call["session_id"] == trajectory["session_id"]]


def test_a_task_s_trials_are_a_group_and_a_retry_is_a_session_of_its_own(up: Up, harbor: Harbor) -> None:
    harbor.task("answer", "Write the number 7 into /app/answer.")
    sick = harbor.task("sick", "Write the number 7 into /app/answer.", UNHEALTHY)
    options = ("--agent", "oracle", "--n-attempts", "2", "--max-retries", "1")
    trials = harbor.run("by-oracle", sick.parent, *options)
    found = trajectories(up, "by-oracle", 6)
    assert {(one["status"], len(one["traces"])) for one in found} == {("COMPLETED", 0)}
    group = [one for one in found if one["label"].startswith("answer")]
    assert len({one["task_id"] for one in group}) == 1
    assert sorted((one["sample_index"], one["num_samples"], one["reward"]) for one in group) == [
        (0, 2, 1.0),
        (1, 2, 1.0),
    ]
    rewards = {name: trial["verifier_result"] and trial["verifier_result"]["rewards"] for name, trial in trials.items()}
    assert {one["label"] for one in group} == {name for name, reward in rewards.items() if reward == {"reward": 1.0}}
    tries = [one for one in found if one not in group]
    assert sorted(one["label"] for one in tries) == sorted(2 * [name for name, reward in rewards.items() if not reward])
    assert {one["reward"] for one in tries} == {None}
    assert sorted(one["num_samples"] for one in tries) == [1, 1, 2, 2]


def test_a_real_cli_s_calls_have_token_ids_and_the_trial_s_reward(up: Up, harbor: Harbor, codex: list[str]) -> None:
    trials = harbor.run("by-codex", harbor.task("answer", "Write the number 7 into /app/answer."), *codex)
    (trajectory,) = trajectories(up, "by-codex", 1)
    ((name, trial),) = trials.items()
    assert (trajectory["label"], trajectory["status"], trajectory["stats"]["answered"]) == (name, "COMPLETED", 2)
    assert trial["exception_info"] is None
    assert trajectory["reward"] == trial["verifier_result"]["rewards"]["reward"] == 1.0
    assert sampled(trajectory) == answered(up, trajectory)
    assert all(sampled(trajectory))


def test_a_killed_trial_has_one_trajectory(up: Up, harbor: Harbor, codex: list[str]) -> None:
    def waiting() -> list[str]:
        return [call["session_id"] for call in engine_record(up) if (call["script"] or "").startswith("harbor/wait")]

    with harbor.running("killed", harbor.task("wait", "Wait until somebody stops you."), *codex) as process:
        (session_id,) = until(waiting, CALLED_S)
        process.kill()
        process.wait()
    # Its TTL would end it, tomorrow.
    cancelled = up.polar("cancel", session_id)
    assert cancelled.returncode == 0, cancelled.stderr
    (trajectory,) = trajectories(up, "killed", 1)
    assert (trajectory["session_id"], trajectory["status"], trajectory["reward"]) == (session_id, "CANCELLED", None)
    assert sampled(trajectory) == answered(up, trajectory)
    assert len(sampled(trajectory)) == 1


def test_an_agent_whose_calls_would_pass_by_is_refused(harbor: Harbor) -> None:
    task = harbor.task("answer", "Write the number 7 into /app/answer.")
    with harbor.running("past-us", task, "--agent", "codex", "--model", "openai/any") as process:
        output, _ = process.communicate(timeout=JOB_S)
    assert process.returncode == 1
    assert "use polar.harbor:codex" in " ".join(output.split())
