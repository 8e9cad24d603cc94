"""A registry of container images on loopback: what pulling needs of the distribution API, and the faults of real registries."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.consumers.runtimes.images.making import Blobs

_ERRORS = {401: "UNAUTHORIZED", 403: "DENIED", 404: "MANIFEST_UNKNOWN", 429: "TOOMANYREQUESTS"}


class Registry:
    """Images by name and tag. Attributes may change at any time."""

    def __init__(self) -> None:
        self.manifests: dict[str, bytes] = {}
        """By `name:tag` and `name@digest`."""
        self.blobs: dict[str, bytes] = {}
        self.requests: list[str] = []
        """Method and path of each."""
        self.status: dict[str, int] = {}
        """What requests whose path has this text are answered with, instead of what they ask for."""
        self.cut: set[str] = set()
        """Digests of blobs of which half is sent."""
        self.held = threading.Event()
        """Set when half of a blob of `hold` has been sent."""
        self.hold: set[str] = set()
        """Digests of blobs whose second half waits for `released`."""
        self.released = threading.Event()
        self.port = 0

    def add(self, name: str, image: Blobs, tag: str = "latest") -> None:
        self.manifests[f"{name}:{tag}"] = self.manifests[f"{name}@{image.manifest_digest}"] = image.manifest
        self.blobs.update(image.blobs)

    def source(self, name: str) -> str:
        """What `[images]` of a worker says."""
        return f"http://127.0.0.1:{self.port}/{name}"

    def asked_for(self, text: str) -> int:
        """Number of GET requests whose path has this text."""
        return sum(line.startswith("GET") and text in line for line in self.requests)


@contextmanager
def serving() -> Iterator[Registry]:
    """A registry that runs in threads of this process."""
    registry = Registry()

    class Handler(_Handler):
        def registry(self) -> Registry:
            return registry

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        registry.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def registry(self) -> Registry:
        raise NotImplementedError

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        registry = self.registry()
        registry.requests.append(f"{self.command} {self.path}")
        status = next((status for text, status in registry.status.items() if text in self.path), 0)
        if status:
            self._fail(status)
            return
        _, _, rest = self.path.partition("/v2/")
        if not rest:
            self._send(b"{}", "application/json")
            return
        name, _, reference = rest.rpartition("/")
        name, _, kind = name.rpartition("/")
        if kind == "manifests":
            separator = "@" if reference.startswith("sha256:") else ":"
            data = registry.manifests.get(f"{name}{separator}{reference}")
            media_type = json.loads(data)["mediaType"] if data else ""
        else:
            data, media_type = registry.blobs.get(reference), "application/octet-stream"
        if data is None:
            self._fail(404)
            return
        self._send(data, media_type, reference)

    def _send(self, data: bytes, media_type: str, reference: str = "") -> None:
        registry = self.registry()
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        half = len(data) // 2
        try:
            self.wfile.write(data[:half])
            if reference in registry.cut:
                self.close_connection = True
                return
            if reference in registry.hold:
                registry.held.set()
                registry.released.wait()
            self.wfile.write(data[half:])
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _fail(self, status: int) -> None:
        data = json.dumps({"errors": [{"code": _ERRORS.get(status, "UNAVAILABLE"), "message": "test"}]}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing."""
