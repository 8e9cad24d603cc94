"""`polar session`: what is wrong before anyone is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from polar.cli.app import app
from polar.cli.session import seconds
from tests.polar.control_api import OPENED, Api, answer, played
from topics.types.errors import InputError


@pytest.mark.parametrize(
    ("ttl", "expected"), [("90s", 90), ("30m", 1800), ("1h", 3600), ("24h", 86400), ("1.5h", 5400)]
)
def test_a_ttl_is_a_number_and_its_unit(ttl: str, expected: float) -> None:
    assert seconds(ttl) == expected


@pytest.mark.parametrize(
    "ttl", ["", "90", "h", "1 h", "-1h", "1d", "1h30m", "25h", "0s", "0.5s", "9" * 400 + "h", "１h", "nan"]
)
def test_what_is_no_ttl_is_refused_with_the_way_out(ttl: str) -> None:
    with pytest.raises(InputError, match=r"--ttl: (expected a number and s, m or h: 90s, 30m, 1h|must be from)"):
        seconds(ttl)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["open", "--ttl", "1d"], 2, "--ttl: expected"),
        (["open", "--samples", "0"], 2, "--samples"),
        (["open", "--mode", "test"], 2, "--mode"),
        (["open"], 3, "no control API"),
        (["close", "t"], 2, "SESSION: expected <task id>.<sample index>"),
        (["close", "t.x"], 2, "expected a task id, or <task id>.<sample index>"),
        (["close", "t.0", "--reward", "x"], 2, "--reward"),
        (["close", "t.0", "--reward", "inf"], 2, "reward: a reward is a finite number"),
        (["close"], 2, "no session given: name one, or set POLAR_SESSION_ID"),
    ],
)
def test_bad_input_is_a_sentence_on_stderr(
    arguments: list[str], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POLAR_CONTROL_URL", "POLAR_SESSION_ID", "POLAR_DATA"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(app, ["session", *arguments, "--data", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr


def test_without_kafka_a_close_is_said_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_SESSION_ID", "t.0")
    with played(tmp_path) as found:
        answer(202, {"session_id": "t.0"})
        for name in ("control_url", "control_token_file"):
            monkeypatch.setenv(f"POLAR_{name.upper()}", str(getattr(found, name)))
        result = CliRunner().invoke(app, ["session", "close", "--reward", "-1", "--data", str(tmp_path)])
        assert Api.asked == [("/v1/sessions/t.0/close", "Bearer secret", {"reward": -1})]
    assert (result.exit_code, result.stdout) == (0, "t.0 is closed\n")
    assert "not waiting for its trajectory: no Kafka" in result.stderr


def test_an_open_session_is_variables_for_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with played(tmp_path) as found:
        answer(201, OPENED)
        for name in ("control_url", "control_token_file"):
            monkeypatch.setenv(f"POLAR_{name.upper()}", str(getattr(found, name)))
        result = CliRunner().invoke(app, ["session", "open", "--data", str(tmp_path)])
    assert result.stdout.splitlines() == [
        "export POLAR_SESSION_ID=t.0",
        "export POLAR_TASK_ID=t",
        "export OPENAI_API_KEY=sk",
    ]
    assert "t.0 is open until 2026-11-21T17:50:15Z; `polar session close t.0` ends it" in result.stderr
