"""Sends spans to a tracing backend with OpenTelemetry's own exporter, and says why where it fails.

The exporter retries within its timeout (OTEL_EXPORTER_OTLP_TIMEOUT, 10 s by default) and reads the standard variables
OTEL_EXPORTER_OTLP_*, those of traces included. Its result says only whether it failed, so the session of `requests` that it sends through
remembers the last answer.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from topics.types.errors import InputError, NotReadyError

PATH = "v1/traces"
DEFAULT = "http://localhost:4318"
PROTOCOL = "http/protobuf"
PROTOBUF = "application/x-protobuf"
REASON_CHARS = 200
PASSING = (408, 429)
"""Statuses below 500 that say nothing against the request."""
TOO_LARGE = 413


class BackendError(NotReadyError):
    """The backend didn't take the spans: it is away, or refuses them. They may be sent again."""


class RefusedError(BackendError):
    """The answer of something that takes no spans as they are sent: a wrong address, a missing key, a web page."""


class TooLargeError(RefusedError):
    """The request has more bytes than the backend, or the exporter itself, sends or takes."""


class Backend:
    """One tracing backend."""

    def __init__(self, endpoint: str | None) -> None:
        """`endpoint`: base URL, in place of OTEL_EXPORTER_OTLP_ENDPOINT. Raises InputError for what no span can be sent to."""
        self.url = _traces_url(endpoint)
        self.rejected = 0
        """Spans that the backend rejected for good, as it reports itself."""
        self._answers = _Answers()
        self._exporter = OTLPSpanExporter(endpoint=self.url, session=self._answers)
        # Its log lines say less than what `send` raises.
        logging.getLogger("opentelemetry.exporter.otlp.proto.http").setLevel(logging.CRITICAL)

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Send spans in one request, or in smaller ones if that is too large; without spans it tests the endpoint. Raises BackendError.

        After an error, a part of the spans may have been taken.
        """
        try:
            self._post(spans)
        except TooLargeError:
            if len(spans) < 2:
                raise
            half = len(spans) // 2
            self.send(spans[:half])
            self.send(spans[half:])

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _post(self, spans: Sequence[ReadableSpan]) -> None:
        """Send one request. Raises BackendError, and TooLargeError if fewer spans may be taken."""
        self._answers.failure = None
        result = self._exporter.export(spans)
        if self._answers.failure is not None:
            raise self._answers.kind(f"{self.url} didn't take the spans: {self._answers.failure}")
        if result is not SpanExportResult.SUCCESS:
            # Nothing was sent: above 64 MiB, or not to be encoded.
            raise TooLargeError(f"{self.url} got no spans: OpenTelemetry's exporter didn't send them")
        self.rejected += self._answers.rejected
        self._answers.rejected = 0


class _Answers(requests.Session):
    """Remembers why the last request failed. A redirect or a web page isn't success, though the exporter takes it as such."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: str | None = None
        self.kind: type[BackendError] = BackendError
        """The error that the failure is."""
        self.rejected = 0

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        try:
            response = super().send(request, **kwargs)
        except requests.RequestException as error:
            self.failure, self.kind = f"no answer ({type(error).__name__})", BackendError
            raise
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.failure = None
        if response.status_code >= 300:
            self.failure = f"it answered {response.status_code} {response.reason}"[:REASON_CHARS]
            self.kind = _kind(response.status_code)
        elif kind == "text/html":
            self.failure = "it answered with a web page; is that the address of its OTLP receiver?"
            self.kind = RefusedError
        elif kind == PROTOBUF:
            self.rejected += _rejected(response.content)
        return response


def _kind(status: int) -> type[BackendError]:
    if status == TOO_LARGE:
        return TooLargeError
    return BackendError if status >= 500 or status in PASSING else RefusedError


def _rejected(body: bytes) -> int:
    try:
        return int(ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans)
    except DecodeError:
        return 0


def _traces_url(endpoint: str | None) -> str:
    """Where traces go: the option's base URL, or what the variables say. Raises InputError."""
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if protocol := os.environ.get(variable):
            if protocol != PROTOCOL:
                raise InputError(variable, protocol, f"only {PROTOCOL} is sent; unset it")
            break
    whole = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if endpoint is not None:
        name, given, url = "--endpoint", endpoint, _with_path(endpoint)
    elif whole:
        name, given, url = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", whole, whole
    else:
        name, given, url = "OTEL_EXPORTER_OTLP_ENDPOINT", base or DEFAULT, _with_path(base or DEFAULT)
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise InputError(name, given, f"expected a URL like {DEFAULT}")
    if parts.username is not None or parts.password is not None:
        raise InputError(name, parts.hostname, "must have no user or password; use OTEL_EXPORTER_OTLP_HEADERS")
    return url


def _with_path(base: str) -> str:
    return f"{base.rstrip('/')}/{PATH}"
