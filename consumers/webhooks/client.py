"""One delivery attempt: the signed message, its POST, and the meaning of the endpoint's answer.

Redirects aren't followed and bodies aren't read: only the status counts. Logs and records show only a URL's host, because its path and
query may hold secrets of the endpoint.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from fnmatch import fnmatchcase
from importlib.metadata import version
from urllib.parse import urlsplit

import aiohttp
import msgspec
import structlog

from topics import trajectories
from topics.environment import webhook_signing
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError
from topics.types.session import session_id_of
from topics.webhooks import Owed

TIMEOUT_S = 15.0
"""For a whole attempt: name, connection, TLS, answer."""
DNS_CACHE_S = 60
REASON_CHARS = 200
GONE = 410
RETRY_AFTER_STATUSES = (429, 503)

log = structlog.get_logger()


class Outcome(Enum):
    """The outcome of an attempt."""

    DELIVERED = "delivered"
    GONE = "gone"
    REFUSED = "refused"
    FAILED = "failed"
    """Will be attempted again."""


@dataclass(frozen=True)
class Result:
    """The result of one attempt."""

    outcome: Outcome
    reason: str = ""
    retry_after_s: float = 0.0


class WebhookClient:
    """Posts webhooks; one per process. Call `close` at the end."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotReadyError without a secret. Needs a running loop."""
        self._namespace = settings.namespace
        self._secret_path = settings.webhook_secret_path
        self._secrets = webhook_signing.read_secrets(self._secret_path)
        self._hosts = settings.webhook_hosts
        self._http = aiohttp.ClientSession(
            # The caller limits connections: a queue here would let a host that hangs delay others.
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=DNS_CACHE_S),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._http.close()

    async def post(self, owed: Owed) -> Result:
        """Attempt one delivery. Every failure is a result."""
        try:
            if not may_call(self._hosts, owed.url):
                return Result(Outcome.REFUSED, "POLAR_WEBHOOK_HOSTS doesn't name its host")
            body = message(owed, self._namespace)
            headers = webhook_signing.sign(webhook_id(owed, self._namespace), int(time.time()), body, self._signing())
            headers |= {"content-type": "application/json", "user-agent": f"polar/{version('polar-rollouts')}"}
            async with self._http.post(owed.url, data=body, headers=headers, allow_redirects=False) as response:
                return result_of(response.status, response.headers, time.time())
        except TimeoutError:
            return Result(Outcome.FAILED, f"no answer within {TIMEOUT_S:.0f} s")
        except (aiohttp.ClientError, OSError, ValueError, OverflowError) as error:
            # ValueError and OverflowError: a URL or time that was never checked. aiohttp's messages may contain the URL.
            return Result(Outcome.FAILED, _reason(error))

    def _signing(self) -> list[str]:
        """The file's current secrets, so that they can be changed while the process runs; the last valid ones while it is being written."""
        try:
            self._secrets = webhook_signing.read_secrets(self._secret_path)
        except NotReadyError as error:
            log.error("using the last valid secrets", action="webhooks.secrets", why=str(error))
        return self._secrets


def may_call(hosts: str, url: str) -> bool:
    """Whether `Settings.webhook_hosts` names the host of a URL. Raises ValueError for what is no URL."""
    host = urlsplit(url).hostname or ""
    return any(fnmatchcase(host, pattern.strip().lower()) for pattern in hosts.split(","))


def webhook_id(owed: Owed, namespace: str) -> str:
    """The id that every attempt shares, by which receivers recognise repeated deliveries."""
    return f"{namespace}.group.{owed.task_id}"


def message(owed: Owed, namespace: str) -> bytes:
    """The message as JSON; every attempt sends the same bytes."""
    at = datetime.fromtimestamp(owed.ended_ms / 1000, UTC).isoformat(timespec="milliseconds")
    count = len(owed.rewards)
    return msgspec.json.encode(
        {
            "type": "group.finished",
            "timestamp": at.replace("+00:00", "Z"),
            "data": {
                "task_id": owed.task_id,
                "namespace": namespace,
                "num_samples": count,
                "session_ids": [session_id_of(owed.task_id, index) for index in range(count)],
                "rewards": owed.rewards,
                "statuses": owed.statuses,
                "output_topic": trajectories.topic(owed.output).full_name(namespace),
            },
        }
    )


def result_of(status: int, headers: Mapping[str, str], now_s: float) -> Result:
    """The meaning of a status: 2xx is success, 410 the end, any other is attempted again; 429 and 503 may say when."""
    if 200 <= status < 300:
        return Result(Outcome.DELIVERED)
    if status == GONE:
        return Result(Outcome.GONE, "it answered 410 and accepts no more")
    wait_s = retry_after_s(headers.get("Retry-After", ""), now_s) if status in RETRY_AFTER_STATUSES else 0.0
    return Result(Outcome.FAILED, f"it answered {status}", wait_s)


def retry_after_s(value: str, now_s: float) -> float:
    """A Retry-After as seconds from now (RFC 9110, 10.2.3: seconds or an HTTP date); 0 if it is neither."""
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - now_s, 0.0)
    except (ValueError, OverflowError):
        return 0.0


def _reason(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "its host has no address"
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return "its TLS certificate or protocol isn't accepted"
        case aiohttp.ClientConnectorError():
            return f"it can't be reached: {error.os_error.strerror}"[:REASON_CHARS]
        case aiohttp.ServerDisconnectedError() | ConnectionError():
            return "it closed the connection"
        case _:
            return type(error).__name__
