"""A request over HTTP with JSON in both directions, by the standard library alone: for commands and user programs, outside any loop."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import URLError
from urllib.request import HTTPErrorProcessor, ProxyHandler, Request

MAX_BYTES = 64 * 1024 * 1024
"""Of an answer; the largest expected is a batch of detokenized texts, of a few MB."""


class NoAnswerError(OSError):
    """The server can't be reached, or breaks off; the message says why."""


@dataclass(frozen=True)
class Answer:
    """An answer of any status."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The decoded body. Raises ValueError."""
        return json.loads(self.body)


class _AnyStatus(HTTPErrorProcessor):
    """Return every answer as it is: no status is an exception, and no redirection is followed."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:
        del request
        return response

    https_response = http_response


def send(
    url: str,
    payload: object = None,
    *,
    token: str | None = None,
    method: str | None = None,
    timeout_s: float,
    through_proxy: bool = False,
) -> Answer:
    """Send `payload` as JSON by POST, or without one a GET. Raises NoAnswerError.

    `token`: a bearer token. `through_proxy`: use the proxies of the environment; otherwise the connection is direct, as on loopback.
    """
    headers = {"Accept": "application/json"}
    if payload is not None:
        headers["Content-Type"] = "application/json"
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None if payload is None else json.dumps(payload).encode()
    # Not urlopen, which remembers the proxies of its first use.
    opener = urllib.request.build_opener(_AnyStatus, *(() if through_proxy else (ProxyHandler({}),)))
    try:
        request = Request(url, data, headers, method=method)  # noqa: S310 - callers pass URLs of settings
        with opener.open(request, timeout=timeout_s) as response:
            body = response.read(MAX_BYTES)
            if response.length:  # bytes that were announced and not read
                raise NoAnswerError(f"the answer breaks off, or is longer than {MAX_BYTES} bytes")
            return Answer(response.status, body)
    except NoAnswerError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        raise NoAnswerError(str(error.reason if isinstance(error, URLError) else error)) from None
