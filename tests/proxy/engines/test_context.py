"""The length of a context: in what servers answer at `/v1/models`, and what is remembered of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.engines import context
from proxy.engines.context import context_in
from proxy.engines.health import Server
from proxy.engines.pool import Engines
from proxy.engines.replicas import Replicas
from proxy.errors import EngineError
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("entry", "length"),
    [
        ({"id": "m", "max_model_len": 32768}, 32768),
        ({"id": "m", "max_model_len": None}, None),
        ({"id": "m"}, None),
        ({"id": "m", "max_model_len": 0}, None),
        ({"id": "m", "max_model_len": -1}, None),
        ({"id": "m", "max_model_len": "32768"}, None),
        ({"id": "other", "max_model_len": 32768}, None),
        ("m", None),
    ],
)
def test_only_a_models_own_positive_number_is_its_length(entry: Any, length: int | None) -> None:
    body = {"object": "list", "data": [{"id": "adapter", "max_model_len": 16}, entry]}
    assert context_in(json.dumps(body).encode(), "m") == length


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"data": null}', b"\xff", b"[" * 10_000])
def test_what_is_no_list_of_models_states_nothing(body: bytes) -> None:
    assert context_in(body, "m") is None


class Plugin:
    """An engine plug-in that states a length, or fails to."""

    owns_prompts = False

    def __init__(self, *results: object) -> None:
        self.results = list(results)
        """Each for one request, the last one for all others: what is returned, or an exception."""
        self.requests = 0
        self.answering = asyncio.Event()
        self.answering.set()

    async def context(self) -> Any:
        self.requests += 1
        await self.answering.wait()
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result


class Silent:
    """An engine plug-in that isn't a `StatesContext`."""

    owns_prompts = False


class Attribute(Silent):
    """An engine plug-in with an attribute of this name that is no method."""

    context = 4096


class Plain(Silent):
    """An engine plug-in whose method is no coroutine function."""

    def context(self) -> int:
        return 4096


def server_of(engine: object) -> Server:
    """A server that is asked nothing but its context."""
    return Server("http://e:1", engine)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "error"),
    [
        (Plugin(ZeroDivisionError()), "ZeroDivisionError"),
        (Plugin(EngineError("timeout", "")), "timeout"),
        (Attribute(), "TypeError"),
        (Plain(), "TypeError"),
    ],
)
async def test_a_plug_in_that_fails_states_nothing_and_is_logged_once(
    engine: object, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "PAUSE_S", 0.0)
    server = server_of(engine)
    with capture_logs() as logs:
        assert [await server.context() for _ in range(3)] == [None] * 3
    assert [(line["action"], line["error"]) for line in logs] == [("context_unread", error)]


@pytest.mark.parametrize("stated", [0, -1, True, "4096", 4096.0, None])
async def test_only_a_positive_number_of_a_plug_in_is_a_length(stated: object) -> None:
    assert await server_of(Plugin(stated)).context() is None


async def test_a_plug_in_that_states_no_length_is_not_asked() -> None:
    assert await server_of(Silent()).context() is None


async def test_a_server_is_asked_once_for_all_who_wait_and_again_after_a_failure_of_a_call() -> None:
    engine = Plugin(4096, 8192)
    server = server_of(engine)
    assert await asyncio.gather(*(server.context() for _ in range(50))) == [4096] * 50
    assert (await server.context(), engine.requests) == (4096, 1)
    server.mark_failed()
    assert (await server.context(), engine.requests) == (8192, 2)


async def test_a_server_that_fails_is_left_alone_for_a_while_and_its_last_length_counts() -> None:
    engine = Plugin(4096, EngineError("timeout", ""))
    server = server_of(engine)
    assert await server.context() == 4096
    server.mark_failed()
    for _ in range(3):
        assert await asyncio.gather(*(server.context() for _ in range(50))) == [4096] * 50
    assert engine.requests == 2


async def test_after_a_pause_it_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "PAUSE_S", 0.0)
    engine = Plugin(EngineError("unreachable", ""), 4096)
    server = server_of(engine)
    assert [await server.context() for _ in range(2)] == [None, 4096]


async def test_a_server_that_is_down_is_not_asked_and_its_last_length_counts() -> None:
    engine = Plugin(4096)
    server = server_of(engine)
    await server.context()
    server.mark_failed()
    server.mark_down()
    assert (await server.context(), engine.requests) == (4096, 1)


async def test_a_client_that_hangs_up_leaves_the_request_to_the_others() -> None:
    engine = Plugin(4096)
    engine.answering.clear()
    server = server_of(engine)
    first, second = (asyncio.create_task(server.context()) for _ in range(2))
    await eventually(lambda: engine.requests == 1)
    first.cancel()
    await asyncio.wait([first])
    engine.answering.set()
    assert (await second, engine.requests) == (4096, 1)


async def test_a_request_under_way_ends_with_its_reader() -> None:
    engine = Plugin(4096)
    engine.answering.clear()
    reader = context.ContextReader("http://e:1", engine)
    waiting = asyncio.create_task(reader.current(0))
    await eventually(lambda: engine.requests == 1)
    await reader.stop()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_engine_is_asked_once_for_all_its_models() -> None:
    large, small = Plugin(8192), Plugin(4096)
    names = [f"m{number}" for number in range(50)]
    pool = Engines(
        [
            Replicas("large", {"http://e:1": large}, model="a", models=names, concurrency=1),  # type: ignore[dict-item]
            Replicas("small", {"http://e:2": small}, model="b", models=["*"], concurrency=1),  # type: ignore[dict-item]
        ]
    )
    assert await pool.contexts(pool.models) == {**dict.fromkeys(names, 8192), "b": 4096}
    assert (large.requests, small.requests) == (1, 1)
