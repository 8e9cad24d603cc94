"""`polar session`: what is wrong before anyone is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar.cli.session import _warn_of_no_answers, _why_no_calls, seconds
from tests.polar.cli.commands import polar
from tests.polar.control_api import OPENED, Api, answer, played
from topics.environment.settings import Settings
from topics.types.errors import InputError
from topics.types.session import Phase, SessionState, Status


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


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The data folder of a system whose control API answers, and that has no Kafka."""
    with played(tmp_path) as found:
        for name in ("control_url", "control_token_file"):
            monkeypatch.setenv(f"POLAR_{name.upper()}", str(getattr(found, name)))
        monkeypatch.setenv("POLAR_SESSION_ID", "t.0")
        yield str(tmp_path)


def test_without_kafka_a_close_is_said_and_not_waited_for(data: str) -> None:
    answer(202, {"session_id": "t.0"})
    code, stdout, stderr = polar("session", "close", "--reward", "-1", "--data", data)
    assert Api.asked == [("/v1/sessions/t.0/close", "Bearer secret", {"reward": -1})]
    assert (code, stdout) == (0, "t.0 is closed\n")
    assert "not waiting for its trajectory: no Kafka" in stderr


def test_an_open_session_is_variables_for_a_shell(data: str) -> None:
    answer(201, OPENED)
    _, stdout, stderr = polar("session", "open", "--label", "codex, tries 2", "--data", data)
    assert Api.asked[0][2]["label"] == "codex, tries 2"
    variables = {"POLAR_SESSION_ID": "t.0", "POLAR_TASK_ID": "t", "OPENAI_API_KEY": "sk"}
    assert stdout.splitlines() == [f"export {name}={value}" for name, value in variables.items()]
    assert "t.0 is open until 2026-11-21T17:50:15Z; `polar session close t.0` ends it" in stderr


@pytest.mark.parametrize(
    ("calls", "trainable_tokens", "reward", "words"),
    [
        (0, 0, None, ["t.0 has no calls"]),
        (3, 0, None, ["t.0 has no trainable tokens: its calls failed, or"]),
        (3, 0, 1.0, ["t.0 has no trainable tokens: its calls failed, or", "the reward 1 doesn't count"]),
        (3, 7, None, []),
    ],
)
def test_a_session_without_answers_is_reported(
    calls: int, trainable_tokens: int, reward: float | None, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    row = SessionState(
        "t.0", "t", 0, Phase.ENDED, 0, status=Status.COMPLETED, calls=calls, trainable_tokens=trainable_tokens
    )
    _warn_of_no_answers(row, "none came with its key", reward)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(words)
    assert all(line.startswith(f"polar: {start}") for line, start in zip(lines, words, strict=True))


def test_a_session_without_calls_says_what_was_refused(capsys: pytest.CaptureFixture[str]) -> None:
    row = SessionState("t.0", "t", 0, Phase.ENDED, 0, status=Status.COMPLETED)
    _warn_of_no_answers(row, "the proxy refused 1 request: POST /foo got 404, nothing is served at POST /foo")
    assert capsys.readouterr().err == (
        "polar: t.0 has no calls: the proxy refused 1 request: POST /foo got 404, nothing is served at POST /foo;"
        " see `polar session open --for`\n"
    )


async def test_a_log_that_takes_long_to_read_doesnt_hold_up_the_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    connections: list[asyncio.StreamWriter] = []
    monkeypatch.setattr("polar.cli.session.LOOK_S", 0.3)
    row = SessionState("t.0", "t", 0, Phase.ENDED, 0, status=Status.COMPLETED, log_offset=0)
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(5):
            why = await _why_no_calls(Settings(kafka=f"127.0.0.1:{port}", data=tmp_path), row)
        for each in connections:
            each.close()
    assert connections
    assert why == "none came with its key, or all were refused"
