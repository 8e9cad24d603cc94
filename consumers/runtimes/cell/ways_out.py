"""The ways out of a sandbox whose network is loopback: the model at MODEL_PORT, and the allowed hosts at ALLOWLIST_PORT.

The sandbox listens inside and sends the sockets out; the worker serves them here.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from consumers.runtimes.base import ModelAccess
from consumers.runtimes.cell.allowlist import allowlist_proxy
from consumers.runtimes.cell.relay import model_relay
from topics.types.runtime import Network, RuntimeSpec

MODEL_PORT = 11800
ALLOWLIST_PORT = 11801
MODEL_KEY = "sk-polar-of-this-session"
"""The key inside. Whatever key a request carries, the relay sends the session's own."""


def reached_at(spec: RuntimeSpec, model: ModelAccess) -> ModelAccess:
    """As `Runtime.reached_at`."""
    if spec.network is Network.HOST:
        return model
    return replace(model, proxy_url=f"http://127.0.0.1:{MODEL_PORT}", key=MODEL_KEY)


class WaysOut:
    """The ways out of one sandbox: at which ports it listens, and who serves them."""

    def __init__(self, policy: Network, hosts: list[str], model: ModelAccess | None) -> None:
        """`ports`: those at which the sandbox's loopback is listened at; None: it has the host's network."""
        self._model = model if policy is not Network.NONE else None
        self._hosts = hosts
        listening = {MODEL_PORT: self._model is not None, ALLOWLIST_PORT: policy is Network.ALLOWLIST}
        self.ports = None if policy is Network.HOST else [port for port, is_open in listening.items() if is_open]

    @property
    def environment(self) -> dict[str, str]:
        if self.ports is None or ALLOWLIST_PORT not in self.ports:
            return {}
        url = f"http://127.0.0.1:{ALLOWLIST_PORT}"
        # curl takes the small name alone for http, and most others take either.
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), url)
        return proxies | dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")

    @asynccontextmanager
    async def served(self, listeners: list[socket.socket]) -> AsyncIterator[None]:
        assert self.ports is not None, "a sandbox with the host's network listens nowhere"
        async with AsyncExitStack() as serving:
            for port, listener in zip(self.ports, listeners, strict=True):
                if port == MODEL_PORT:
                    assert self._model is not None, "the port is open for it"
                    await serving.enter_async_context(model_relay(listener, self._model.proxy_url, self._model.key))
                else:
                    await serving.enter_async_context(allowlist_proxy(listener, self._hosts))
            yield
