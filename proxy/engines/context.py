"""The length of an engine's context: the tokens that a prompt and its answer may have together.

vLLM and SGLang state it by model in `/v1/models`, as `max_model_len`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, runtime_checkable

import msgspec
import structlog

from proxy.engines.http import UNREADABLE
from proxy.errors import EngineError

PAUSE_S = 2.0
"""Time after a failed request for the length until the next one: a server that doesn't answer gets no request for each client's."""

log = structlog.get_logger(__name__)


@runtime_checkable
class StatesContext(Protocol):
    """An engine plug-in whose server may state the length. A plug-in that lacks this isn't asked."""

    async def context(self) -> int | None:
        """Tokens, 1 or more; None: the server doesn't state it. Raises EngineError if it doesn't answer."""


class ContextReader:
    """Reads the length that one server states, and remembers it.

    At most one request is under way; all who wait share its result.
    """

    def __init__(self, url: str, engine: object) -> None:
        """`url` is for log lines; `engine` is the server's plug-in."""
        self._url = url
        self._source = engine if isinstance(engine, StatesContext) else None
        self.last: int | None = None
        """Tokens by the server's last answer; None: it stated none, or hasn't answered yet."""
        self._read_at: int | None = None
        """`breaks` at the start of the last request that was answered."""
        self._reading: asyncio.Task[None] | None = None
        self._next_at = float("-inf")
        """Time of the event loop before which no request is made."""
        self._logged: str | None = None
        """The failure that was logged last, until an answer comes."""

    async def current(self, breaks: int) -> int | None:
        """The length in tokens; the last one if the server can't be asked now; None if it is unknown.

        `breaks`: a count of the events after which the server may be another process. The server is asked once for each count, and after
        a failure again.
        """
        if self._source is not None and self._read_at != breaks:
            if self._reading is None and asyncio.get_running_loop().time() >= self._next_at:
                self._reading = asyncio.create_task(self._read(self._source, breaks), name=f"context of {self._url}")
            if self._reading is not None:
                await asyncio.shield(self._reading)
        return self.last

    async def stop(self) -> None:
        """Cancel the request that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self, source: StatesContext, breaks: int) -> None:
        try:
            stated: object = await source.context()
        except EngineError as error:
            self._failed(error.code)
        except Exception as error:  # of a plug-in
            self._failed(type(error).__name__)
        else:
            self.last = stated if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0 else None
            self._read_at, self._logged = breaks, None
        finally:
            self._reading = None

    def _failed(self, failure: str) -> None:
        """Pause, and log a failure unless it is the same as before. `failure`: the code of an EngineError, or the type of an exception."""
        self._next_at = asyncio.get_running_loop().time() + PAUSE_S
        if failure != self._logged:
            self._logged = failure
            log.warning("an engine's context is unread", action="context_unread", url=self._url, error=failure)


class _Model(msgspec.Struct):
    id: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_models = msgspec.json.Decoder(_Models)


def context_in(models: bytes, model: str) -> int | None:
    """The length of one model in a body of `/v1/models`; None if it isn't there."""
    try:
        listed = _models.decode(models).data
    except UNREADABLE:
        return None
    stated = next((each.max_model_len for each in listed if each.id == model), None)
    return stated if stated is not None and stated > 0 else None
