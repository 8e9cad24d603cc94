"""One named engine: several servers of the same model behind one interface.

Invariant: while its server is up, a session's calls go to that server, which has their prefix in its cache; all proxies choose the same
server. At most `concurrency` calls are under way here. A failed attempt is repeated within the retry budget, at another server if one is
up. If none is up, the servers are tried all the same.

A request that a working engine can't answer is at fault itself: an agent could otherwise end its attempt without a reward by such a request
(protocol 34). So when all attempts have failed, the engine gets a request of ours; if it answers, the call gets its attempts once more.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import msgspec

from proxy.chat import Answer, ChatRequest, Message
from proxy.engines.admission import Admission
from proxy.engines.base import Engine
from proxy.engines.health import Server
from proxy.engines.process import LOGIN, Process
from proxy.engines.retry import with_retries
from proxy.errors import EngineError
from proxy.fleet import EngineCall
from proxy.rendezvous import ranked
from topics.types.completion import Sampling

ANY = "*"
"""The entry in an engine's `models` that stands for any requested name."""

BROKE = frozenset({"server_error", "cut"})
"""Codes of `EngineError` that tell nothing about whose fault it was."""
RESTARTS = frozenset({"unreachable", "cut"})
"""Codes of `EngineError` after which a server may have been started again."""
PROBE = ChatRequest([Message("user", "Say a word.")], sampling=Sampling(temperature=1, top_k=1, max_tokens=1))
"""Asks for one token. Without top_k, a vLLM that returns sampling masks would answer 500."""
PROBE_S = 30.0
"""Deadline for the engine's answer to `PROBE`: a loaded engine answers one token within seconds."""

T = TypeVar("T")


class Replicas:
    """A named engine with one or more servers."""

    def __init__(
        self,
        name: str,
        servers: Mapping[str, Engine],
        *,
        model: str,
        models: Sequence[str] = (ANY,),
        concurrency: int,
        unasked_grammar: bool | None = None,
    ) -> None:
        """`servers` by URL, at least one; `model` is the model that they serve, `models` the names that harnesses may request."""
        self.name = name
        self.unasked_grammar = unasked_grammar
        """Whether they constrain tool calls that no request asks to constrain; None: unknown."""
        self.models = [each for each in models if each != ANY] or [model]
        """Names for model lists."""
        self.takes_any = ANY in models
        self.admission = Admission(concurrency)
        self._servers = {url: Server(url, engine) for url, engine in servers.items()}

    @property
    def owns_prompts(self) -> bool:
        """True if calls continue from tokens; all servers of an engine have the same plug-in."""
        return all(server.engine.owns_prompts for server in self._servers.values())

    @property
    def healthy(self) -> int:
        """The number of servers that are up."""
        return sum(server.is_up for server in self._servers.values())

    @property
    def urls(self) -> list[str]:
        """Those of its servers, as in `Process`."""
        return [LOGIN.sub("", url) for url in self._servers]

    async def start(self, on_process: Callable[[str, Process], None] = lambda *_: None) -> None:
        """Open connections; no server need be up. `on_process` is called with the engine's name and each process behind its URLs."""
        for server in self._servers.values():
            await server.start(partial(on_process, self.name))

    async def stop(self) -> None:
        """Close connections; calls in flight fail."""
        await asyncio.gather(*(server.stop() for server in self._servers.values()))

    async def complete(
        self,
        request: ChatRequest,
        session_id: str,
        *,
        under_way: EngineCall | None = None,
        patiently: bool = False,
    ) -> Answer:
        """A call's answer, within the retry budget. Raises EngineError.

        `under_way` is entered while the call has its turn, provides the cache salt of each request, and gets the process that answered;
        `patiently` is passed to `Admission.turn`.
        """

        async def ask(server: Server) -> Answer:
            salt = None if under_way is None else lambda: under_way.salt
            answer = await server.engine.complete(msgspec.structs.replace(request, salt=salt), session_id)
            if under_way is not None:
                under_way.process = server.process or await server.identify()
            return answer

        async with self.admission.turn(patiently=patiently), under_way or nullcontext():
            try:
                return await self._with_retries(session_id, ask)
            except EngineError as fault:
                if fault.code not in BROKE or not await self._is_answering():
                    raise
            try:
                return await self._with_retries(session_id, ask)
            except EngineError as fault:
                if fault.code not in BROKE:
                    raise
                raise EngineError(
                    "unanswerable",
                    f"the engine fails at this request and answers others: {fault.message}",
                    status=fault.status,
                ) from None

    async def _is_answering(self) -> bool:
        """Whether the engine answers a request of ours, at the first attempt."""
        session_id = secrets.token_hex(4)
        servers = [self._servers[url] for url in ranked(session_id, self._servers)]
        server = min(servers, key=lambda each: not each.is_up)
        try:
            async with asyncio.timeout(PROBE_S):
                await server.engine.complete(PROBE, session_id)
        except (EngineError, TimeoutError):
            return False
        return True

    async def count_tokens(self, request: ChatRequest) -> int:
        """As `Engine` defines, by any server that is up. Raises EngineError."""
        return await self._with_retries(secrets.token_hex(4), lambda server: server.engine.count_tokens(request))

    async def detokenize(self, token_ids: list[int]) -> str:
        """As `Engine` defines, by any server that is up. Raises EngineError."""
        return await self._with_retries(secrets.token_hex(4), lambda server: server.engine.detokenize(token_ids))

    async def context(self) -> int | None:
        """The shortest context of its servers in tokens, since a session may move between them; None: it is unknown.

        A server that is down counts with its last statement: its sessions return to it when it is up again.
        """
        lengths = await asyncio.gather(*(server.context() for server in self._servers.values()))
        return min((each for each in lengths if each is not None), default=None)

    async def _with_retries(self, key: str, ask: Callable[[Server], Awaitable[T]]) -> T:
        servers = [self._servers[url] for url in ranked(key, self._servers)]
        tried: set[Server] = set()

        async def attempt() -> T:
            server = min(servers, key=lambda each: (not each.is_up, each in tried))  # the first in rank among equals
            tried.add(server)
            try:
                result = await ask(server)
            except EngineError as fault:
                if fault.code in RESTARTS:
                    server.mark_failed()
                if fault.code == "unreachable":
                    server.mark_down()
                raise
            server.mark_up()
            return result

        return await with_retries(attempt, has_other=lambda: any(each.is_up and each not in tried for each in servers))
