"""A server before an S3 server that lets requests through one at a time, and loses answers on demand.

S3Proxy decides a conditional write in two steps, so that two writers at once may both succeed. Behind this server it is atomic, as S3 is.
"""

from __future__ import annotations

import http
import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP = frozenset({"connection", "transfer-encoding", "keep-alive"})
ANSWER_S = 30.0


class Front:
    def __init__(self, url: str) -> None:
        self._server = urlsplit(url).netloc
        self._one = threading.Lock()
        self.loses: str | None = None
        """The server handles the next PUT with this in its path, and the client gets no answer to it."""
        self.is_away = False
        """Connections are closed without an answer."""
        self.ignores_conditions = False
        """Whether each conditional write is said to have succeeded."""
        self.goes_away = False
        """Whether it is away after an answer was lost."""
        self.puts: list[str] = []
        """Paths of the PUTs that were let through."""
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.http.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with front._one:
                    answer = front._answer(self.command, self.path, body, dict(self.headers))
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, data = answer
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in HOP:
                        self.send_header(name, value)
                if not any(name.lower() == "content-length" for name, _ in headers):
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815 - the base class's names

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes] | None:
        """Status, headers and body of the server's answer; None: the client gets none."""
        if self.is_away:
            return None
        connection = http.client.HTTPConnection(self._server, timeout=ANSWER_S)
        try:
            connection.request(method, path, body, headers)
            found = connection.getresponse()
            answer = found.status, found.getheaders(), found.read()
        finally:
            connection.close()
        if self.ignores_conditions and answer[0] == http.HTTPStatus.PRECONDITION_FAILED:
            return http.HTTPStatus.OK, [("ETag", '"any"')], b""
        if method == "PUT":
            self.puts.append(path)
            if self.loses is not None and self.loses in path:
                self.loses, self.is_away = None, self.goes_away
                return None
        return answer


@contextmanager
def front(url: str) -> Iterator[Front]:
    """A server before the one at `url`."""
    made = Front(url)
    thread = threading.Thread(target=made.http.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.http.shutdown()
        made.http.server_close()
        thread.join()
