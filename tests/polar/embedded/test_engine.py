"""`--engine` takes a URL with or without /v1, and its only model where none is named. The servers here are real HTTP, answers canned."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from polar.embedded import engine
from polar.types.errors import InputError, NotReady


@contextmanager
def serving(body: str, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/v1/models"
            self.send_response(status if found else 404)
            self.end_headers()
            self.wfile.write(body.encode() if found else b"")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_only_model_is_taken(suffix: str) -> None:
    with serving('{"data": [{"id": "qwen"}]}') as url:
        assert engine.find(url + suffix, None) == engine.Engine(url, "qwen")


def test_of_several_models_one_must_be_named() -> None:
    with serving('{"data": [{"id": "a"}, {"id": "b"}]}') as url:
        assert engine.find(url, "b") == engine.Engine(url, "b")
        with pytest.raises(InputError, match=r"--model: .* serves a, b; name one"):
            engine.find(url, None)
        with pytest.raises(InputError, match=r"--model: .* serves a, b \(got 'c'\)"):
            engine.find(url, "c")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("{}", 200, "no inference server"),
        ("[]", 200, "no inference server"),
        ('{"data": [1]}', 200, "no inference server"),
        ("<html>", 200, "doesn't answer"),
        ("", 503, "doesn't answer"),
    ],
)
def test_what_is_no_engine_is_told(body: str, status: int, said: str) -> None:
    with serving(body, status) as url, pytest.raises(NotReady, match=said):
        engine.find(url, None)
