"""A real server on loopback answers: every status is an answer, every failure one error."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from topics.environment.http_json import Answer, NoAnswerError, send


class Echo(BaseHTTPRequestHandler):
    """Answers with the path's status and, as JSON, what it received; `/cut` breaks off within the body."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        echo = {"method": self.command, "token": self.headers.get("Authorization"), "body": body}
        status, answer = (200, b"{") if self.path == "/cut" else (int(self.path[1:]), json.dumps(echo).encode())
        self.send_response(status)
        self.send_header("Location", "/200")
        self.send_header("Content-Length", str(len(answer) + (self.path == "/cut")))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_HEAD = do_POST  # noqa: N815 - the names that http.server calls

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("status", [200, 302, 404, 503])
def test_an_answer_of_any_status_is_returned(url: str, status: int) -> None:
    answer = send(f"{url}/{status}", {"a": [1]}, token="secret", timeout_s=10)
    assert answer.status == status
    assert answer.json() == {"method": "POST", "token": "Bearer secret", "body": '{"a": [1]}'}


def test_the_method_follows_the_payload_unless_named(url: str) -> None:
    assert send(f"{url}/200", timeout_s=10).json() == {"method": "GET", "token": None, "body": ""}
    assert send(f"{url}/302", method="HEAD", timeout_s=10) == Answer(302, b"")


@pytest.mark.parametrize("through_proxy", [False, True])
def test_the_environments_proxy_is_used_only_on_request(
    url: str, monkeypatch: pytest.MonkeyPatch, through_proxy: bool
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    if through_proxy:
        with pytest.raises(NoAnswerError, match="refused"):
            send(f"{url}/200", timeout_s=10, through_proxy=True)
    else:
        assert send(f"{url}/200", timeout_s=10).status == 200


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://127.0.0.1:1", "refused"),
        ("no-scheme", "unknown url type"),
        ("http://127.0.0.1:port", "port"),
        ("cut", "breaks off"),
    ],
)
def test_a_failure_is_one_error_with_its_reason(url: str, address: str, reason: str) -> None:
    with pytest.raises(NoAnswerError, match=reason):
        send(f"{url}/cut" if address == "cut" else address, timeout_s=10)


def test_a_body_that_is_no_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        Answer(200, b"<html>").json()
