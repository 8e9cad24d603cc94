"""A control API that a test plays, on a port of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from topics.environment.settings import Settings

OPENED = {"session_id": "t.0", "key": "sk", "expires_at": "2026-11-21T17:50:15Z", "env": {"OPENAI_API_KEY": "sk"}}


class Api(BaseHTTPRequestHandler):
    """Answers as it is told to, and keeps what it was asked."""

    status: ClassVar[int] = 201
    body: ClassVar[bytes] = b""
    asked: ClassVar[list[tuple[str, str | None, object]]] = []

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["Authorization"], given))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def played(folder: Path) -> Iterator[Settings]:
    """The settings that lead to it."""
    (folder / "token").write_text("secret\n")
    Api.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        yield Settings(data=folder, control_url=url, control_token_file=folder / "token")
        server.shutdown()
        thread.join()


def answer(status: int, body: object) -> None:
    Api.status, Api.body = status, body if isinstance(body, bytes) else json.dumps(body).encode()
