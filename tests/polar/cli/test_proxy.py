"""`polar proxy` as far as nothing is served yet: what can't work is said at once, with the way out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polar.cli.app import app
from topics.environment.keys import ensure_keys_file


class Models(BaseHTTPRequestHandler):
    """As much of an inference server as is asked before the first call."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "m"}]}')

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def engine() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLAR_DATA", str(tmp_path))
    monkeypatch.setenv("POLAR_KAFKA", "127.0.0.1:9")
    ensure_keys_file(tmp_path / "keys.json")


def proxy(*arguments: str, engine: str = "http://127.0.0.1:9") -> tuple[int, str]:
    result = CliRunner().invoke(app, ("proxy", "--engine", engine, "--port", "0", "--control-port", "0", *arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr


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
def test_a_port_that_is_taken_is_said(engine: str, several: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, stderr = proxy("--port", port, *several, engine=engine)
    assert code == 3
    assert f"127.0.0.1:{port}" in stderr
    assert "in use" in stderr
