"""A stand-in for a tracing backend: it takes OTLP over HTTP as a collector does, parses the real protobuf, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PROTOBUF = "application/x-protobuf"


@dataclass
class Receiver:
    """What came, and what it answers."""

    url: str = ""
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    status: int = 200
    spans_status: int = 200
    """The status of the answers to requests with spans, if `status` is 200."""
    largest: int | None = None
    """It answers 413 to bodies with more bytes."""
    content_type: str = PROTOBUF
    rejected: int = 0
    silent_after: int | None = None
    """It takes so many requests with spans, then keeps the next ones without answering until `release`."""
    release: threading.Event = field(default_factory=threading.Event)

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for of_resource in request.resource_spans
            for scope in of_resource.scope_spans
            for span in scope.spans
        ]

    def status_of(self, request: ExportTraceServiceRequest, size: int) -> int:
        """Take the request, or refuse it."""
        if self.largest is not None and size > self.largest:
            return 413
        status = self.spans_status if self.status == 200 and request.resource_spans else self.status
        if status == 200:
            self.requests.append(request)
        return status

    @property
    def batches(self) -> int:
        """Requests with spans."""
        return sum(bool(request.resource_spans) for request in self.requests)


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span or a resource as Python values."""
    return {pair.key: _value(pair.value) for pair in of.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def receiving(port: int = 0, **settings: Any) -> Iterator[Receiver]:
    """A receiver on a port of this host."""
    receiver = Receiver(**settings)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.paths.append(self.path)
            receiver.headers.append({key.lower(): value for key, value in self.headers.items()})
            status = receiver.status_of(ExportTraceServiceRequest.FromString(body), len(body))
            if receiver.silent_after is not None and receiver.batches > receiver.silent_after:
                receiver.release.wait(30)
                self.close_connection = True
                return
            answer = ExportTraceServiceResponse()
            if receiver.rejected:
                answer.partial_success.rejected_spans = receiver.rejected
            content = answer.SerializeToString()
            self.send_response(status)
            self.send_header("content-type", receiver.content_type)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
