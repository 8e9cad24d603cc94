"""`polar proxy` as far as nothing is served yet: what can't work is said at once, with the way out."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.polar.cli.commands import polar
from tests.serving import serving
from topics.environment.keys import ensure_keys_file

SEVERAL = ("", " --processes 2")


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLAR_DATA", str(tmp_path))
    monkeypatch.setenv("POLAR_KAFKA", "127.0.0.1:9")
    ensure_keys_file(tmp_path / "keys.json")


def proxy(*arguments: str, engine: str = "http://127.0.0.1:9") -> tuple[int, str]:
    code, _, stderr = polar("proxy", "--engine", engine, "--port", "0", "--control-port", "0", *arguments)
    return code, stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *((f"--host {host}{rest}", "--advertise http://HOST:PORT") for host in ("0.0.0.0", "::") for rest in SEVERAL),
        *(
            (f"--advertise {url}", "like http://10.0.0.7:8400")
            for url in ("here:8400", "http://", "http://here/v1", "ftp://here", "http://here:99999")
        ),
        ("--advertise http://here:8400 --processes 2", "leave the port out"),
    ],
)
def test_an_address_that_others_cannot_use_is_refused(arguments: str, words: str) -> None:
    code, stderr = proxy(*arguments.split())
    assert code == 2
    assert words in stderr
    assert arguments.split()[0] in stderr


@pytest.mark.parametrize("several", SEVERAL)
def test_a_port_that_is_taken_is_said(several: str) -> None:
    models = {"data": [{"id": "m"}]}
    with serving(lambda _: (200, models)) as (engine, _), socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, stderr = proxy("--port", port, *several.split(), engine=engine)
    assert code == 3
    assert f"127.0.0.1:{port}" in stderr
    assert "in use" in stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--engine http://127.0.0.1:9 --capture logits", "expected routed_experts or sampling_mask"),
        ("--capture sampling_mask", "in polar.toml set the engine's `capture`"),
    ],
)
def test_what_can_not_be_captured_is_refused(arguments: str, words: str) -> None:
    code, _, stderr = polar("proxy", *arguments.split())
    assert code == 2
    assert words in stderr


def test_a_mode_that_can_not_capture_is_refused_by_up(tmp_path: Path) -> None:
    code, _, stderr = polar("up", "--data", str(tmp_path), "--capture", "routed_experts")
    assert code == 2
    assert "--capture: mode 'chat' can't return routed_experts; mode \"tokens\" can, with vLLM" in stderr
