"""`polar proxy`: where its engines come from, and what is said where none can be had."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from polar.cli.app import app


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and no Kafka near."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLAR_KAFKA", "127.0.0.1:9")
    return tmp_path


def proxy(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ("proxy", *arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "engines: name one: --engine URL, or [engines.<name>] with its urls in the current folder's polar.toml"),
        (["--model", "m"], "--model: needs --engine (got 'm')"),
        (["--mode", "tokens"], "--mode: needs --engine; in polar.toml set the engine's `mode` (got 'tokens')"),
        (["--engine", "host:1"], "--engine: expected http://host:port, with or without /v1 (got 'host:1')"),
    ],
)
def test_what_names_no_engine_is_refused_with_the_way_out(arguments: list[str], said: str) -> None:
    code, stderr = proxy(*arguments)
    assert code == 2
    assert said in stderr


def test_none_of_the_servers_that_flags_name_answers() -> None:
    code, stderr = proxy("--engine", "http://127.0.0.1:9", "--engine", "http://127.0.0.1:10", "--model", "m")
    assert code == 3
    assert "the engine at http://127.0.0.1:9 doesn't answer" in stderr


def test_an_engine_of_the_file_is_told_by_its_field(here: Path) -> None:
    (here / "polar.toml").write_text('[engines.large]\nurls = ["http://127.0.0.1:9"]\nconcurency = 4\n')
    code, stderr = proxy()
    assert code == 2
    assert "engines.large.concurency: Extra inputs are not permitted (got 4)" in stderr
