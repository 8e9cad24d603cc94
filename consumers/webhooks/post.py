"""One try: the message, signed, POSTed, and what the endpoint's answer means.

Redirects are not followed and answers not read: a status is all that counts. What is logged and kept of a URL is its host, since paths
and queries may hold what only the endpoint should know.
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
from topics.types.errors import NotReady
from topics.types.session import session_id_of
from topics.webhooks import Owed

TIMEOUT_S = 15.0
"""For all of a try: name, connection, TLS, answer."""
NAMES_S = 60
"""How long a host's addresses are remembered."""
WHY_CHARS = 200
GONE = 410
ASKS_TO_WAIT = (429, 503)

log = structlog.get_logger()


class Verdict(Enum):
    """What a try came to."""

    DELIVERED = "delivered"
    GONE = "gone"
    REFUSED = "refused"
    FAILED = "failed"
    """To be tried again."""


@dataclass(frozen=True)
class Answer:
    """How an endpoint took it."""

    verdict: Verdict
    why: str = ""
    retry_after_s: float = 0.0


class Post:
    """Tells endpoints; one for a process. `close` at the end."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotReady without a secret. Needs a running loop."""
        self._namespace = settings.namespace
        self._secret_path = settings.webhook_secret_path
        self._secrets = webhook_signing.read_secrets(self._secret_path)
        self._hosts = [pattern.strip().lower() for pattern in settings.webhook_hosts.split(",")]
        self._http = aiohttp.ClientSession(
            # Bounded by who calls: a queue for connections would let a host that hangs hold up others.
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=NAMES_S),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._http.close()

    async def __call__(self, owed: Owed) -> Answer:
        """Try once. Whatever comes of it is an answer."""
        try:
            if not any(fnmatchcase(urlsplit(owed.url).hostname or "", pattern) for pattern in self._hosts):
                return Answer(Verdict.REFUSED, "POLAR_WEBHOOK_HOSTS doesn't name its host")
            body = message(owed, self._namespace)
            headers = webhook_signing.sign(webhook_id(owed, self._namespace), int(time.time()), body, self._signing())
            headers |= {"content-type": "application/json", "user-agent": f"polar/{version('polar-rollouts')}"}
            async with self._http.post(owed.url, data=body, headers=headers, allow_redirects=False) as response:
                return judge(response.status, response.headers, time.time())
        except TimeoutError:
            return Answer(Verdict.FAILED, f"no answer within {TIMEOUT_S:.0f} s")
        except (aiohttp.ClientError, OSError, ValueError, OverflowError) as error:
            # The last two: an URL or an instant that was never checked. aiohttp's own words may repeat the URL.
            return Answer(Verdict.FAILED, _reason(error))

    def _signing(self) -> list[str]:
        """The file's secrets as they are now, so that they can be changed while we run; the last good ones where it is being written."""
        try:
            self._secrets = webhook_signing.read_secrets(self._secret_path)
        except NotReady as error:
            log.error("keeping the secrets of before", action="webhooks.secrets", why=str(error))
        return self._secrets


def webhook_id(owed: Owed, namespace: str) -> str:
    """The same for every try, so that receivers can tell what they have seen."""
    return f"{namespace}.group.{owed.task_id}"


def message(owed: Owed, namespace: str) -> bytes:
    """What is told, as JSON; the same bytes for every try."""
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


def judge(status: int, headers: Mapping[str, str], now_s: float) -> Answer:
    """What a status means: 2xx is success, 410 ends it, all else is tried again; 429 and 503 may say when."""
    if 200 <= status < 300:
        return Answer(Verdict.DELIVERED)
    if status == GONE:
        return Answer(Verdict.GONE, "it answered 410: it wants no more")
    asked = retry_after_s(headers.get("Retry-After", ""), now_s) if status in ASKS_TO_WAIT else 0.0
    return Answer(Verdict.FAILED, f"it answered {status}", asked)


def retry_after_s(value: str, now_s: float) -> float:
    """A Retry-After as seconds from now (RFC 9110, 10.2.3: seconds or an HTTP date); 0 where it says nothing."""
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
            return f"it can't be reached: {error.os_error.strerror}"[:WHY_CHARS]
        case aiohttp.ServerDisconnectedError() | ConnectionError():
            return "it hung up"
        case _:
            return type(error).__name__
