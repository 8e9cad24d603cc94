"""What is refused before anything is sent: field, value, reason on stderr, and the exit code of the design."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polar.cli.app import app

pytestmark = pytest.mark.contract

GOOD: dict[str, Any] = {
    "task_id": "good",
    "instruction": "mend it",
    "agent": {"harness": "shell", "custom_shell": {"command": "true"}},
}


@pytest.fixture(autouse=True)
def _no_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Kafka is near: whatever got past the checks would end with exit code 3."""
    monkeypatch.delenv("POLAR_KAFKA", raising=False)
    monkeypatch.delenv("POLAR_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def polar(*arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"instructions": "x"}, "instructions: no such field; is it misspelt? (got 'x')"),
        ({"agent": {"harness": "claud"}}, "agent.harness: no such harness; there are: claude_code, codex, "),
        ({"evaluator": {"strategy": "best"}}, "evaluator.strategy: no such evaluator; there are: session_completed"),
        (
            {"builder": {"strategy": "tree"}},
            "builder.strategy: no such builder; there are: per_request, prefix_merging",
        ),
        (
            {"builder": {"config": {"merge": 1}}},
            "builder.config.merge: no such setting of this builder; there are: end_of_turn_token_id, filters, rewards (got 1)",
        ),
        (
            {"builder": {"strategy": "per_request", "config": {"filters": {"min_tokens": 3}}}},
            "builder.config.filters.min_tokens: no such setting of this builder; there are: drop_truncated, engines, kinds, max_tokens",
        ),
        (
            {"builder": {"config": {"rewards": "best"}}},
            "builder.config.rewards: Input should be 'all', 'main_chain' or 'leaf' (got 'best')",
        ),
        (
            {"builder": {"config": {"filters": {"max_tokens": 0}}}},
            "builder.config.filters.max_tokens: Input should be greater than 0 (got 0)",
        ),
        ({"runtime": {"backend": "docker"}}, "runtime.backend: no such runtime; there are: process"),
        ({"instruction": "ä" * 600_000}, "instruction: 1200000 bytes; at most 1048576"),
        ({"num_samples": 1025}, "num_samples: Input should be less than or equal to 1024 (got 1025)"),
        ({"num_samples": 0}, "num_samples: Input should be greater than or equal to 1 (got 0)"),
        ({"task_id": "../etc"}, "task_id: String should match pattern"),
        ({"task_id": "a.0"}, "task_id: String should match pattern"),
        ({"timeout_seconds": 90_000}, "timeout_seconds: Input should be less than or equal to 86400"),
        ({"max_attempts": 100}, "timeouts × max_attempts = 480000 s"),
        ({"callback_url": "x"}, "callback_url: must be an http or https URL"),
    ],
)
def test_a_bad_task_is_refused_with_field_value_and_reason(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"task_id": "bad"} | change) + "\n")
    code, stdout, stderr = polar("submit", str(file))
    assert code == 2
    assert f"{file}, line 2: " in stderr
    assert said in stderr
    assert "nothing was submitted" in stderr
    assert stdout == ""


def test_all_that_is_wrong_in_all_files_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("task_id: a\n---\ntask_id: b\ninstruction: x\nagent: {harness: nope}\n")
    (tmp_path / "b.json").write_text("{")
    code, _, stderr = polar("submit", "a.yaml", "b.json", "c.yaml")
    assert code == 2
    assert "a.yaml, document 1 (line 1): instruction: Field required" in stderr
    assert "a.yaml, document 2 (line 3): agent.harness: no such harness" in stderr
    assert "b.json, line 1, column 2: not JSON" in stderr
    assert "can't be read: No such file or directory (got 'c.yaml')" in stderr


def test_names_in_a_task_file_steer_no_terminal() -> None:
    code, _, stderr = polar("submit", "-", stdin=json.dumps(GOOD | {"\u202e\x07field": 1}))
    assert code == 2
    assert "\\u202e\\x07field: no such field" in stderr


def test_one_id_with_two_bodies_is_refused() -> None:
    stdin = json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"instruction": "another"})
    code, _, stderr = polar("submit", "-", stdin=stdin)
    assert code == 2
    assert "standard input, line 2: task_id: another body of this submission has the same id (got 'good')" in stderr


def test_a_source_that_is_not_here_is_said_and_may_be_elsewhere(tmp_path: Path) -> None:
    upload = {"type": "upload_file", "source": "agent.py", "target": "agent.py"}
    (tmp_path / "a.json").write_text(json.dumps(GOOD | {"runtime": {"prepare": [upload]}}))
    code, _, stderr = polar("submit", "a.json")
    assert f"a.json: runtime.prepare.0.source: no {tmp_path / 'agent.py'} on this machine" in stderr
    assert code == 3, "it went on, as far as to Kafka"


def test_a_good_task_without_kafka_ends_with_what_is_missing() -> None:
    code, _, stderr = polar("submit", "-", stdin=json.dumps(GOOD))
    assert code == 3
    assert "no Kafka: .polar/polar.env doesn't exist and POLAR_KAFKA isn't set; start one with `polar up`" in stderr


@pytest.mark.parametrize(
    "command", [["status"], ["trajectories"], ["cancel", "t"], ["topics", "list"], ["topics", "apply"]]
)
def test_a_kafka_that_does_not_answer_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("POLAR_KAFKA", "127.0.0.1:9")
    code, stdout, stderr = polar(*command)
    assert code == 3
    assert "polar: Kafka at 127.0.0.1:9 doesn't answer: is it running there, and is POLAR_KAFKA" in stderr
    assert stdout == ""


@pytest.mark.parametrize("command", ["cancel", "status"])
@pytest.mark.parametrize("target", ["a", "a.0", "a.1023", "A_b-9", "9" * 128])
def test_a_task_or_session_id_is_accepted(command: str, target: str) -> None:
    code, _, stderr = polar(command, "--", target)
    assert (code, "no Kafka" in stderr) == (3, True), "it went on, as far as to Kafka"


@pytest.mark.parametrize("command", ["cancel", "status"])
@pytest.mark.parametrize("target", ["", "a b", "a.", "a.b", ".0", "a.0.1", "a.01", "../x"])
def test_what_is_no_task_and_no_session_is_refused(command: str, target: str) -> None:
    code, _, stderr = polar(command, "--", target)
    assert code == 2
    assert f"TASK|SESSION: expected a task id, or <task id>.<sample index> (got {target!r})" in stderr


@pytest.mark.parametrize(
    "arguments",
    [["submit"], ["nosuch"], ["worker"], ["worker", "cook"], ["worker", "run", "--concurrency", "0"], ["proxy"]],
)
def test_bad_usage_ends_with_2(arguments: list[str]) -> None:
    assert polar(*arguments)[0] == 2


def test_a_pool_s_name_is_checked_before_anything_is_asked_for() -> None:
    code, _, stderr = polar("worker", "run", "--pool", "GPU 1")
    assert code == 2
    assert "--pool: a pool's name has at most 63 lower-case letters, digits and dashes (got 'GPU 1')" in stderr


@pytest.mark.parametrize("command", [["-h"], ["submit", "-h"], ["topics", "-h"]])
def test_help_is_at_hand_by_its_short_name(command: list[str]) -> None:
    code, stdout, _ = polar(*command)
    assert code == 0
    assert "Usage: " in stdout


def test_the_version_is_said_without_a_system() -> None:
    assert polar("--version") == (0, f"polar {version('polar-rollouts')}\n", "")


def test_a_bad_setting_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_NAMESPACE", "Not Good")
    code, _, stderr = polar("status")
    assert code == 2
    assert "POLAR_NAMESPACE: " in stderr
    assert "(got 'Not Good')" in stderr


def test_up_needs_an_engine_that_answers() -> None:
    code, _, stderr = polar("up", "--engine", "http://127.0.0.1:9/v1")
    assert code == 3
    assert "the engine at http://127.0.0.1:9 doesn't answer" in stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--engine", "localhost:8000"],
            "--engine: expected http://host:port, with or without /v1 (got 'localhost:8000')",
        ),
        (["--model", "m"], "--model: needs --engine (got 'm')"),
        (["--engine", "http://127.0.0.1:9", "--scripts", "."], "--scripts: only the scripted engine has scripts"),
        (["--mode", "telepathy"], "--mode: must be chat, tokens, or an engine plug-in"),
    ],
)
def test_up_refuses_options_that_make_no_sense(arguments: list[str], said: str) -> None:
    code, _, stderr = polar("up", *arguments)
    assert code == 2
    assert said in stderr


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    code, _, stderr = polar("proxy", "--engine", "http://127.0.0.1:9")
    assert code == 3
    assert "package uvloop is missing: pip install 'polar-rollouts[proxy]'" in stderr
