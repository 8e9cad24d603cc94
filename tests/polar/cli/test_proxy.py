"""`polar proxy` as far as nothing is served yet: what can't work is said at once, with the way out."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.polar.cli.commands import polar
from tests.serving import serving
from topics.environment.keys import ensure_keys_file


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLAR_DATA", str(tmp_path))
    monkeypatch.setenv("POLAR_KAFKA", "127.0.0.1:9")
    ensure_keys_file(tmp_path / "keys.json")


def proxy(*arguments: str, engine: str = "http://127.0.0.1:9") -> tuple[int, str]:
    code, _, stderr = polar("proxy", "--engine", engine, "--port", "0", "--control-port", "0", *arguments)
    return code, stderr


@pytest.mark.parametrize("several", [(), ("--processes", "2")])
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_proxy_on_every_address_says_where_others_reach_it(host: str, several: tuple[str, ...]) -> None:
    code, stderr = proxy("--host", host, *several)
    assert code == 2
    assert "--host" in stderr
    assert "--advertise http://HOST:PORT" in stderr


@pytest.mark.parametrize("url", ["here:8400", "http://", "http://here/v1", "ftp://here", "http://here:99999"])
def test_an_address_for_others_is_a_base_url(url: str) -> None:
    code, stderr = proxy("--advertise", url)
    assert (code, "like http://10.0.0.7:8400" in stderr) == (2, True)


def test_several_processes_share_no_port_for_others() -> None:
    code, stderr = proxy("--advertise", "http://here:8400", "--processes", "2")
    assert (code, "leave the port out" in stderr) == (2, True)


@pytest.mark.parametrize("several", [(), ("--processes", "2")])
def test_a_port_that_is_taken_is_said(several: tuple[str, ...]) -> None:
    models = {"data": [{"id": "m"}]}
    with serving(lambda _: (200, models)) as (engine, _), socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, stderr = proxy("--port", port, *several, engine=engine)
    assert code == 3
    assert f"127.0.0.1:{port}" in stderr
    assert "in use" in stderr
