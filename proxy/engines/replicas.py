"""One named engine: servers of the same model, asked as if they were one.

Invariant: while its server is up, a session's calls go to that one, which has their prefix in its cache; all proxies choose the same. At
most `concurrency` calls are under way here. A try that failed is made again within the budget, at another server where one is up; where
none is, they are asked all the same.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TypeVar

import msgspec

from proxy.chat import Answer, ChatRequest
from proxy.engines.admission import Admission
from proxy.engines.base import Engine
from proxy.engines.health import Server
from proxy.engines.retry import with_retries
from proxy.errors import EngineError
from proxy.fleet import EngineCall
from proxy.rendezvous import ranked

ANY = "*"
"""Among an engine's `models`: whatever is asked for."""

T = TypeVar("T")


class Replicas:
    """An engine by its name, over one server or several."""

    def __init__(
        self, name: str, servers: Mapping[str, Engine], *, model: str, models: Sequence[str] = (ANY,), concurrency: int
    ) -> None:
        """`servers` by URL, at least one; `model` is what they are asked for, `models` what harnesses may ask for."""
        self.name = name
        self.models = [each for each in models if each != ANY] or [model]
        """For model lists."""
        self.takes_any = ANY in models
        self.admission = Admission(concurrency)
        self._servers = {url: Server(url, engine) for url, engine in servers.items()}

    @property
    def owns_prompts(self) -> bool:
        """Whether calls go on from tokens; servers of one engine are asked in one way."""
        return all(server.engine.owns_prompts for server in self._servers.values())

    @property
    def healthy(self) -> int:
        """Servers that are up."""
        return sum(server.is_up for server in self._servers.values())

    async def start(self) -> None:
        """Opens connections; doesn't ask whether a server is there."""
        for server in self._servers.values():
            await server.start()

    async def stop(self) -> None:
        """Closes them; calls in flight fail."""
        await asyncio.gather(*(server.stop() for server in self._servers.values()))

    async def complete(
        self,
        request: ChatRequest,
        session_id: str,
        *,
        under_way: EngineCall | None = None,
        patiently: bool = False,
    ) -> Answer:
        """A call's answer, within the budget for retries. Raises EngineError.

        `under_way` is entered while the call has its turn, and says what each request's cache is salted with; `patiently` as
        `Admission.turn` takes it.
        """

        def ask(engine: Engine) -> Awaitable[Answer]:
            salt = None if under_way is None else lambda: under_way.salt
            return engine.complete(msgspec.structs.replace(request, salt=salt), session_id)

        async with self.admission.turn(patiently=patiently), under_way or nullcontext():
            return await self._asked(session_id, ask)

    async def count_tokens(self, request: ChatRequest) -> int:
        """By any server that is up. Raises EngineError."""
        return await self._asked(secrets.token_hex(4), lambda engine: engine.count_tokens(request))

    async def detokenize(self, token_ids: list[int]) -> str:
        """By any server that is up. Raises EngineError."""
        return await self._asked(secrets.token_hex(4), lambda engine: engine.detokenize(token_ids))

    async def _asked(self, key: str, ask: Callable[[Engine], Awaitable[T]]) -> T:
        servers = [self._servers[url] for url in ranked(key, self._servers)]
        tried: set[Server] = set()

        async def attempt() -> T:
            server = min(servers, key=lambda each: (not each.is_up, each in tried))  # of equals the first, as ranked
            tried.add(server)
            try:
                told = await ask(server.engine)
            except EngineError as fault:
                if fault.code == "unreachable":
                    server.lost()
                raise
            server.heard()
            return told

        return await with_retries(attempt, has_other=lambda: any(each.is_up and each not in tried for each in servers))
