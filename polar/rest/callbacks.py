"""Callbacks: a client's `callback_url` receives NVIDIA's `TaskResult` when the group is finished, at least once.

The task's own `callback_url` is a path of this service, with the client's URL as its query. So Polar's webhooks bring the message here,
signed and with their retries for a day, and an answer other than 2xx makes them try again. Nothing is stored here: any instance at the
advertised address forwards any callback, also after a restart.

The signature covers the body alone, and whoever receives webhooks can replay or sign one. So a result goes only to the URL in the task's
own `callback_url`, as the coordinator's table has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
import structlog
from aiohttp import web

from consumers.webhooks.client import may_call
from polar.rest.answers import BodyError, read_body
from polar.webhooks import WebhookSignatureError, verify_webhook
from topics.environment import webhook_signing
from topics.environment.settings import Settings
from topics.types.errors import InputError
from topics.types.parts import is_http_url

PATH = "/callbacks/group"
FORWARD_S = 10.0
"""NVIDIA's limit for a callback; our webhooks wait 15 s for this service."""

log = structlog.get_logger(__name__)


class Callbacks:
    """Forwards callbacks."""

    def __init__(
        self,
        settings: Settings,
        result: Callable[[str], Awaitable[bytes]],
        callback_url: Callable[[str], str | None],
    ) -> None:
        """`result`: the encoded TaskResult of a task; raises BodyError if it has none. `callback_url`: that of a task with a result."""
        self._secret_path = settings.webhook_secret_path
        self._hosts = settings.webhook_hosts
        self._http = aiohttp.ClientSession(
            # Webhook workers limit requests: a queue here would let clients that hang delay others.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=FORWARD_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._result = result
        self._callback_url = callback_url

    async def close(self) -> None:
        await self._http.close()

    def url(self, base_url: str, client_url: object) -> str:
        """The task's `callback_url` for a client's one. Raises InputError for a URL that may not be called."""
        if not isinstance(client_url, str) or not is_http_url(client_url):
            raise InputError("callback_url", client_url, "must be an http or https URL")
        parts = urlsplit(client_url)
        if parts.username or parts.password:
            raise InputError("callback_url", parts.hostname, "must hold no user or password")
        if not may_call(self._hosts, client_url):
            raise InputError("callback_url", parts.hostname, "POLAR_WEBHOOK_HOSTS doesn't name its host")
        return f"{base_url}{PATH}?{urlencode({'to': client_url})}"

    async def forward(self, request: web.Request) -> web.Response:
        """Handle a message of our own webhooks."""
        client_url = request.query.get("to", "")
        try:
            secrets = webhook_signing.read_secrets(self._secret_path)
            message = verify_webhook(request.headers, await read_body(request), secrets)
        except WebhookSignatureError as error:
            raise BodyError(401, str(error)) from None
        if not is_http_url(client_url) or not may_call(self._hosts, client_url):
            raise BodyError(410, "POLAR_WEBHOOK_HOSTS doesn't name the callback's host")
        task_id = message["data"]["task_id"]
        body = await self._result(task_id)
        if parse_qs(urlsplit(self._callback_url(task_id) or "").query).get("to") != [client_url]:
            raise BodyError(403, f"the callback_url of task {task_id} names another URL")
        headers = {"Content-Type": "application/json"}
        host = urlsplit(client_url).hostname
        try:
            async with self._http.post(client_url, data=body, headers=headers, allow_redirects=False) as answer:
                status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise BodyError(502, f"{host} can't be reached: {type(error).__name__}") from None
        log.info("callback", action="rest.callback", task=task_id, host=host, status=status)
        if 200 <= status < 300:
            return web.Response(status=204)
        raise BodyError(410 if status == 410 else 502, f"{host} answered {status}")
