"""Whatever an engine makes of its answer, a harness sees a whole answer or a clean error, and the log has what it saw.

The engine is the scripted one with its faults; the proxy, its dialects and Kafka are real. For bytes that come cut anywhere, in pieces or
with a bit flipped see engines/test_response.py and engines/test_vllm_chat.py.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anthropic.types
import msgspec
import openai.types.chat
import openai.types.responses
import pytest
from google.genai import types as google
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Cut, Fault, Garbage, Slow, Status
from polar.scripted.scripts import Script, ScriptCall, ScriptTurn, Variant
from proxy.chat import Message
from tests.proxy.conftest import Bench, benched, proxied
from tests.proxy.talks import DIALECTS
from topics.environment import registry
from topics.types.completion import CallOutcome

EXAMPLES = 300
EVERY_TRY = 6
"""More than a call makes."""
SAID = ScriptTurn("Done — 🎉", "Hm.", (ScriptCall("bash", {"command": "ls"}),))
SCRIPT = Script("all", "", (Variant((SAID,)),))
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}


# --- how each dialect is asked, and what it answers


@dataclass(frozen=True)
class Asking:
    """What a dialect's answers look like."""

    model: type[Any]
    """The official client's own, of a whole body."""
    is_last: Callable[[Any], bool]
    """Whether a stream's last event is the one that ends it."""
    error_fields: frozenset[str] = frozenset({"message", "type", "param", "code"})
    id_field: str = "id"


FUNCTION = {"name": "bash", "description": "runs", "parameters": SCHEMA}
ASKING = {
    "openai_chat": Asking(openai.types.chat.ChatCompletion, lambda last: last == "[DONE]"),
    "openai_responses": Asking(openai.types.responses.Response, lambda last: last["type"] == "response.completed"),
    "anthropic_messages": Asking(
        anthropic.types.Message, lambda last: last["type"] == "message_stop", frozenset({"type", "message"})
    ),
    "google_generate_content": Asking(
        google.GenerateContentResponse,
        lambda last: "finishReason" in last["candidates"][0],
        frozenset({"code", "message", "status"}),
        "response_id",
    ),
}


# --- the world that the examples share


class World:
    """A proxy that serves every dialect, in front of an engine with faults; what was seen of it."""

    def __init__(self, kafka: str, namespace: str, folder: Path) -> None:
        self._where = kafka, namespace, folder
        self._stack = AsyncExitStack()
        self.scripted = ScriptedEngine([SCRIPT])
        self._port = 0
        self.seen: dict[str, tuple[str, str] | None] = {}
        """Whole answers by id: text and arguments, of those in OpenAI's bodies; the others' are their conformance tests'."""
        self.refused = 0
        self._engine = AsyncExitStack()
        self.bench: Bench

    async def start(self) -> None:
        enter = self._stack.enter_async_context
        self.bench = await enter(benched(*self._where))
        self._stack.push_async_callback(self.stop_engine)
        proxy = await enter(proxied(self.bench, await self.start_engine()))
        self._http = await enter(
            aiohttp.ClientSession(proxy.url, headers={"Authorization": f"Bearer {self.bench.key()}"})
        )

    async def start_engine(self) -> str:
        url = await self._engine.enter_async_context(running(self.scripted, port=self._port))
        self._port = int(url.rpartition(":")[2])
        return url

    async def stop_engine(self) -> None:
        await self._engine.aclose()

    async def stop(self) -> None:
        await self._stack.aclose()

    async def ask(self, dialect: str, *, stream: bool) -> int:
        """The status; fails for anything between a whole answer (200) and a clean error."""
        asking = ASKING[dialect]
        words = DIALECTS[dialect]
        path, body = words.path, words.body([words.user("hi")]) | {"tools": words.tools([FUNCTION])}
        if stream and path.endswith(":generateContent"):
            path = path.replace("generateContent", "streamGenerateContent") + "?alt=sse"
        elif stream:
            body["stream"] = True
        async with asyncio.timeout(10), self._http.post(path, json=body) as response:
            told = await response.read()
        if response.status == 200:
            call_id = _stream_id(asking, told) if stream else _body_id(asking, told)
            self.seen[call_id] = _said(told) if dialect == "openai_chat" and not stream else None
            return 200
        self.refused += 1
        assert "Retry-After" in response.headers or response.status not in (429, 503)
        error = json.loads(told)["error"]
        assert set(error) - {"details"} == asking.error_fields, "the provider's shape"
        assert error["message"]
        return response.status

    async def log_holds_what_was_seen(self) -> None:
        """A completion for each answer seen, as it was seen, and no other answered one; one that failed for each error."""
        calls = await self.bench.calls(len(self.seen) + self.refused)
        answered = {call.call_id: call for call in calls if call.outcome is CallOutcome.ANSWERED}
        assert set(answered) == set(self.seen)
        assert Counter(call.outcome for call in calls) == Counter(
            {CallOutcome.ANSWERED: len(self.seen), CallOutcome.FAILED: self.refused}
        )
        for call_id, said in self.seen.items():
            message = msgspec.json.decode(answered[call_id].answer, type=Message)
            assert said in (
                None,
                (message.content, message.tool_calls[0].function.arguments if message.tool_calls else ""),
            )


def _said(told: bytes) -> tuple[str, str]:
    """Text and arguments."""
    message = json.loads(told)["choices"][0]["message"]
    calls = message.get("tool_calls")
    return message["content"], calls[0]["function"]["arguments"] if calls else ""


def _body_id(asking: Asking, told: bytes) -> str:
    whole = asking.model.model_validate_json(told)
    found = getattr(whole, asking.id_field)
    assert isinstance(found, str)
    return found


def _stream_id(asking: Asking, told: bytes) -> str:
    events = [line.removeprefix("data: ") for line in told.decode().splitlines() if line.startswith("data: ")]
    parsed: list[Any] = [each if each == "[DONE]" else json.loads(each) for each in events]
    assert asking.is_last(parsed[-1]), f"the stream ends with {events[-1]}"
    first = parsed[0]
    holder = first.get("response") or first.get("message") or first
    found = holder.get("responseId") or holder["id"]
    assert isinstance(found, str)
    return found


Run = Callable[[Awaitable[Any]], Any]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs what is awaited in one loop, whose proxy lives on between: hypothesis' examples are plain calls."""
    with asyncio.Runner() as runner:

        async def awaited(what: Awaitable[Any]) -> Any:
            return await what

        yield lambda what: runner.run(awaited(what))


@pytest.fixture(scope="module")
def world(kafka: str, tmp_path_factory: pytest.TempPathFactory, run: Run) -> Iterator[World]:
    world = World(kafka, f"t{secrets.token_hex(4)}", tmp_path_factory.mktemp("faults"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxy.engines.retry.PAUSES_S", (0.002, 0.002))
        try:
            run(world.start())
            yield world
            run(world.log_holds_what_was_seen())
        finally:
            run(world.stop())


TIMES = st.sampled_from([1, EVERY_TRY])
FORMS: tuple[Any, ...] = ("not_json", "no_token_ids", "length_mismatch", "nan_logprobs", "empty_choices")
FAULTS = st.one_of(
    st.builds(Garbage, form=st.sampled_from(FORMS), times=TIMES),
    st.builds(Status, status=st.sampled_from([400, 404, 429, 500, 503]), times=TIMES),
    st.builds(Cut, after_bytes=st.none() | st.integers(1, 400), times=TIMES),
    st.builds(Slow, delay_s=st.just(0.02)),
)


def test_every_dialect_is_put_to_the_test() -> None:
    assert set(ASKING) == set(registry.names(registry.Kind.DIALECT))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(dialect=st.sampled_from(sorted(ASKING)), stream=st.booleans(), trouble=FAULTS)
def test_a_harness_sees_a_whole_answer_or_a_clean_error_and_the_log_what_it_saw(
    world: World, run: Run, dialect: str, stream: bool, trouble: Fault
) -> None:
    world.scripted.faults.add(trouble)
    status = run(world.ask(dialect, stream=stream))
    world.scripted.faults.clear()
    match trouble:
        case Slow():
            assert status == 200
        case Cut(times=1) | Status(status=429 | 500 | 503, times=1):
            assert status == 200, "it is ridden out"
        case Status(status=400):
            assert status == 400
        case Status(status=429 | 503):
            assert status == 429
        case _:
            assert status == 502, "no half answer is believed, and no harness to blame"


@pytest.mark.parametrize("dialect", sorted(ASKING))
def test_an_engine_that_is_gone_is_told_and_one_that_is_back_is_asked(world: World, run: Run, dialect: str) -> None:
    run(world.stop_engine())
    assert run(world.ask(dialect, stream=True)) == 503
    run(world.start_engine())
    assert run(world.ask(dialect, stream=True)) == 200
