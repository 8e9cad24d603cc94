"""A real HTTP server on loopback whose answers a test chooses."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Requests(list[tuple[str, str | None, Any]]):
    """Path, Authorization header and JSON body of each request, in order of arrival; `methods` likewise."""

    def __init__(self) -> None:
        super().__init__()
        self.methods: list[str] = []


Answer = tuple[int, object] | tuple[int, object, dict[str, str]]
"""Status, body and headers; a body of bytes is sent as it is, others as JSON."""


def free_port() -> int:
    """A port of loopback on which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def serving(answer: Callable[[Any], Answer]) -> AbstractContextManager[tuple[str, Requests]]:
    """The server's URL and its requests so far, the one being answered included; `answer` is called with a request's body."""
    return serving_by_path(lambda _, body: answer(body))


@contextmanager
def serving_by_path(answer: Callable[[str, Any], Answer]) -> Iterator[tuple[str, Requests]]:
    """As `serving`, with answers that depend on the request's path, too."""
    requests = Requests()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
            requests.append((self.path, self.headers["Authorization"], body))
            requests.methods.append(self.command)
            status, answered, *more = answer(self.path, body)
            data = answered if isinstance(answered, bytes) else json.dumps(answered).encode()
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(data))} | (more[0] if more else {})).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else data)

        do_GET = do_HEAD = do_POST  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()
