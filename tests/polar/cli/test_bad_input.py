"""What is refused before anything is sent: field, value, reason on stderr, and the exit code of the design."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.polar.cli.commands import polar

pytestmark = pytest.mark.contract

GOOD: dict[str, Any] = {
    "task_id": "good",
    "instruction": "mend it",
    "agent": {"harness": "shell", "custom_shell": {"command": "true"}},
}


@pytest.fixture(autouse=True)
def _no_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Kafka is near: whatever got past the checks would end with exit code 3."""
    for name in ("KAFKA", "DATA", "CONTROL_URL", "SESSION_ID"):
        monkeypatch.delenv(f"POLAR_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"instructions": "x"}, "instructions: no such field; do you mean instruction? (got 'x')"),
        ({"agent": {"harness": "claud"}}, "agent.harness: no such harness; there are: claude_code, codex, "),
        (
            {"builder": {"config": {"merge": 1}}},
            "builder.config.merge: no such setting of this builder; there are: end_of_turn_token_id, filters, rewards (got 1)",
        ),
        (
            {"builder": {"strategy": "per_request", "config": {"filters": {"min_tokens": 3}}}},
            "builder.config.filters.min_tokens: no such setting of this builder; there are: drop_media, drop_truncated, engines, ",
        ),
        (
            {
                "evaluator": {
                    "strategy": "test_on_output",
                    "config": {"test_command": "t", "expected_output_json": {"a": "OK"}},
                }
            },
            "evaluator.config.expected_output_json: must map test names to one of PASSED, FAILED, ERROR, SKIPPED (got {'a': 'OK'})",
        ),
        (
            {"agent": {"harness": "pi", "settings": {"api": "openai"}}},
            "agent.settings.api: must be one of openai-completions, openai-responses, anthropic-messages, google-",
        ),
        ({"num_samples": 1025}, "num_samples: Input should be less than or equal to 1024 (got 1025)"),
        ({"task_id": "a.0"}, "task_id: expected text that matches ^"),
        (
            {"runtime": {"backend": "process", "verifier_network": "host"}},
            "runtime: verifier_network='host' can't be kept by runtime.backend 'process'; leave verifier_network out",
        ),
        ({"timeout_seconds": 90_000}, "timeout_seconds: Input should be less than or equal to 86400"),
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


def test_a_source_that_cannot_be_uploaded_is_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_KAFKA", "127.0.0.1:9")
    (tmp_path / "tasks/repo").mkdir(parents=True)
    (tmp_path / "tasks/repo/link").symlink_to("/etc/passwd")
    uploads = [
        {"type": "upload_file", "source": "agent.py", "target": "."},
        {"type": "upload_dir", "source": "repo", "target": "."},
    ]
    bodies = [GOOD | {"task_id": f"t{n}", "runtime": {"eval_prepare": [upload]}} for n, upload in enumerate(uploads)]
    (tmp_path / "tasks/a.json").write_text(json.dumps(bodies))
    code, _, stderr = polar("submit", "tasks/a.json")
    assert code == 2
    assert (
        "a.json, item 1: runtime.eval_prepare.0.source: can't be read: No such file or directory (got 'agent.py')"
        in stderr
    )
    assert f"a.json, item 2: runtime.eval_prepare.0.source: {tmp_path / 'tasks/repo/link'} is a symbolic link" in stderr
    assert "nothing was submitted" in stderr


def test_without_kafka_nothing_is_stored(tmp_path: Path) -> None:
    (tmp_path / "agent.py").touch()
    upload = {"type": "upload_file", "source": "agent.py", "target": "."}
    code, _, stderr = polar("submit", "-", stdin=json.dumps(GOOD | {"runtime": {"prepare": [upload]}}))
    assert (code, "no Kafka" in stderr) == (3, True)
    assert not (tmp_path / ".polar").exists()


NEED_KAFKA = (
    "status|watch|trajectories|cancel t|topics list|topics apply|fleet pause|fleet resume|fleet status|fleet drain"
)


@pytest.mark.parametrize("command", NEED_KAFKA.split("|"))
def test_a_kafka_that_does_not_answer_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("POLAR_KAFKA", "127.0.0.1:9")
    code, stdout, stderr = polar(*command.split())
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


ONE = json.dumps(GOOD)
OTHER = json.dumps(GOOD | {"instruction": "another"})


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "said"),
    [
        ("submit", None, 2, "Missing argument"),
        ("nosuch", None, 2, "No such command"),
        ("worker", None, 2, "Missing"),
        ("worker cook", None, 2, "cook"),
        ("worker run --concurrency 0", None, 2, "--concurrency"),
        ("submit -", json.dumps(GOOD | {"\u202e\x07field": 1}), 2, r"\u202e\x07field: no such field"),
        ("submit -", f"{ONE}\n{OTHER}", 2, "line 2: task_id: another body of this submission has the same id (got 'good')"),
        ("submit -", ONE, 3, "no Kafka: no Polar runs on the data folder .polar (polar.env doesn't exist), and POLAR_KAFKA isn't set"),
        ("worker run --pool GPU_1", None, 2, "--pool: a pool's name has at most 63 lower-case letters, digits and dashes (got 'GPU_1')"),
        ("up --engine http://127.0.0.1:9/v1", None, 3, "the engine at http://127.0.0.1:9 doesn't answer"),
        ("up --engine host:1", None, 2, "--engine: expected http://host:port, with or without /v1 (got 'host:1')"),
        ("up --model m", None, 2, "--model: needs --engine (got 'm')"),
        ("up --engine http://127.0.0.1:9 --scripts .", None, 2, "--scripts: only the scripted engine has scripts"),
        ("up --mode telepathy", None, 2, "--mode: must be chat, tokens, or an engine plug-in"),
        ("proxy", None, 2, "engines: name one: --engine URL, or [engines.<name>] with its urls in the current folder's polar.toml"),
        ("proxy --model m", None, 2, "--model: needs --engine (got 'm')"),
        ("proxy --mode tokens", None, 2, "--mode: needs --engine; in polar.toml set the engine's `mode` (got 'tokens')"),
        ("proxy --model m --engine http://127.0.0.1:9 --engine http://127.0.0.1:10", None, 3, "http://127.0.0.1:9 doesn't answer"),
        ("proxy --engine host:1", None, 2, "--engine: expected http://host:port, with or without /v1 (got 'host:1')"),
        ("session open --ttl 1d", None, 2, "--ttl: expected"),
        ("session open --samples 0", None, 2, "'--samples': Input should be greater than or equal to 1 (got '0')"),
        ("session open --mode test", None, 2, "'--mode': 'test' is not one of 'train', 'eval'.\n"),
        ("session open", None, 3, "no control API"),
        ("session close t", None, 2, "SESSION: expected <task id>.<sample index>"),
        ("session close t.x", None, 2, "expected a task id, or <task id>.<sample index>"),
        ("session close t.0 --reward x", None, 2, "unable to parse string as a number (got 'x')"),
        ("session close t.0 --reward inf", None, 2, "reward: a reward is a finite number"),
        ("dead-letters show abc", None, 2, "unable to parse string as an integer (got 'abc')"),
        ("dead-letters list --topic nope", None, 2, "--topic: no such topic; there are: tasks, events, sessions, "),
        ("up --data /proc/x", None, 2, "--data: the folder can't be made: No such file or directory; choose another one (got '/proc/x')"),
        ("session close", None, 2, "no session given: name one, or set POLAR_SESSION_ID"),
    ],
)  # fmt: skip
def test_a_bad_command_is_refused_on_stderr_with_the_way_out(
    arguments: str, stdin: str | None, code: int, said: str
) -> None:
    found, stdout, stderr = polar(*arguments.split(), stdin=stdin)
    assert (found, stdout) == (code, "")
    assert said in stderr


def test_an_engine_of_a_file_is_told_by_its_field() -> None:
    Path("polar.toml").write_text('[engines.large]\nurls = ["http://127.0.0.1:9"]\nconcurency = 4\n')
    code, _, stderr = polar("proxy")
    assert code == 2
    assert "polar.toml: engines.large.concurency: no such field; do you mean concurrency? (got 4)" in stderr


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    code, _, stderr = polar("proxy", "--engine", "http://127.0.0.1:9")
    assert code == 3
    assert "package uvloop is missing: in a clone of Polar, pip install '.[proxy]'" in stderr
