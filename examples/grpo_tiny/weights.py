"""New weights for a vLLM server that runs: on its development routes, while the fleet is paused (docs/fleet.md)."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any
from urllib.parse import urlencode, urlsplit

ANSWER_S = 60.0


class PushError(RuntimeError):
    """The server didn't take the weights; the message has its answer."""


def reload(url: str, version: int) -> float:
    """Let the server read its model's file again, and forget what the old weights computed; the seconds that took.

    The new file lies in the old one's place already. Raises PushError.
    """
    began = time.monotonic()
    _post(url, "/pause?" + urlencode({"mode": "wait"}))
    try:
        _post(url, "/collective_rpc", {"method": "reload_weights"})
        _post(url, "/reset_prefix_cache")
        _post(url, "/update_weight_version", {"new_version": str(version)})
    finally:
        _post(url, "/resume")
    return time.monotonic() - began


def _post(url: str, route: str, body: dict[str, Any] | None = None) -> None:
    """A connection each: the server drops one that is idle for 5 s, and a training step leaves them idle for longer."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=ANSWER_S)
    try:
        connection.request("POST", route, json.dumps(body or {}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        said = response.read().decode(errors="replace")
    except OSError as error:
        raise PushError(f"{url}{route} doesn't answer: {error}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise PushError(f"{url}{route} answers {response.status}: {said[:500]}")
