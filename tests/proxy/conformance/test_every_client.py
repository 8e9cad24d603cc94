"""What holds of every provider's official client at a real proxy: what it saw is what the log holds, and what the engine sampled."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Slow, Status
from polar.scripted.scripts import ScriptTurn
from proxy.app import Proxy
from proxy.chat import Message
from proxy.errors import Refusal
from tests.proxy.conformance import clients
from tests.proxy.conformance.clients import Chat, Client, Generate, Messages, Reply, Responses, Vertex
from tests.proxy.conformance.conftest import check_growth, script
from tests.proxy.conftest import Bench
from topics.environment import blob_store
from topics.types.completion import CallOutcome, Completion
from topics.types.tokens import unpack_ids

# How Google's client makes its own sessions of aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
CLIENTS: tuple[type[Any], ...] = (Chat, Responses, Messages, Generate)
CONTEXT = 4096
"""The engine's, in tokens."""


def of(*kinds: type[Client]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


streams = pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])


@pytest.fixture
def scripted(kind: type[Client]) -> ScriptedEngine:
    """An engine whose scripts call the tools of the client's dialect."""
    work = (
        ScriptTurn(text="I look.", reasoning=" Hm, hm. ", calls=kind.work),
        ScriptTurn(reasoning="Again.", calls=(kind.again,)),
        ScriptTurn(text="Done.", reasoning="All there."),
    )
    weather = ScriptTurn(text='{"city":"Bern","degrees":21}')
    return ScriptedEngine([script("work", *work), script("weather", weather)], max_model_len=CONTEXT)


@pytest.fixture
async def client(kind: type[Any], proxy: Proxy, bench: Bench) -> AsyncIterator[Client]:
    """A client with session t.0's key; it doesn't try again by itself."""
    async with kind(proxy.url, bench.key()) as client:
        yield client


def check(client: Client, reply: Reply, call: Completion, sampled: Any, thoughts: bool = True) -> Message:
    """The client's view, the log's and the engine's of one call are the same. The message on the log."""
    assert (reply.id, call.outcome, call.dialect) == (call.call_id, CallOutcome.ANSWERED, client.dialect)
    assert unpack_ids(call.sampled).tolist() == sampled.token_ids
    assert reply.usage == (len(sampled.prompt_token_ids), len(sampled.token_ids))
    message = msgspec.json.decode(call.answer, type=Message)
    shown = "" if client.hides_thoughts and not thoughts else message.reasoning or ""
    assert (reply.text, reply.reasoning) == (message.content or "", shown)
    assert reply.calls == [
        (
            each.id,
            each.function.name,
            each.function.arguments if client.keeps_text else json.loads(each.function.arguments),
        )
        for each in message.tool_calls
    ]
    return message


@of(*CLIENTS, Vertex)
@streams
async def test_tools_in_several_turns_are_one_growing_prompt(
    client: Client, bench: Bench, scripted: ScriptedEngine, stream: bool
) -> None:
    thoughts = not stream
    history, replies = [client.user("work")], []
    for _ in range(3):
        [reply] = await client.ask(history, stream, tools=True, thoughts=thoughts)
        replies.append(reply)
        history += [*reply.turns, *client.results(reply)]

    calling, ended, _ = client.stops
    assert [reply.stop for reply in replies] == [calling, calling, ended]
    calls, books = await bench.calls(3), scripted.record.calls("t.0")
    logged = [check(client, *views, thoughts) for views in zip(replies, calls, books, strict=True)]
    assert [len(message.tool_calls) for message in logged] == [len(client.work), 1, 0]
    assert [message.content for message in logged] == ["I look.", None, "Done."]
    assert [(call.stream, call.model_requested) for call in calls] == [(stream, clients.MODEL)] * 3
    opening = json.loads(calls[0].messages.rest)
    assert [message["role"] for message in opening] == ["system", "user"]
    assert clients.SYSTEM in str(opening[0]["content"])
    check_growth(scripted)
    for (before, after), book in zip(pairwise(calls), books, strict=False):
        assert after.prompt.base == before.call_id
        assert after.prompt.shared == len(book.prompt_token_ids) + len(book.token_ids)


@of(*CLIENTS)
async def test_an_image_reaches_the_engine_where_it_stood_and_its_bytes_are_stored(
    client: Client, bench: Bench
) -> None:
    await client.ask([client.user("what is this?", clients.PIXEL)], system=False)
    [call] = await bench.calls(1)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{clients.PIXEL}"}}
    text = {"type": "text", "text": "what is this?"}
    assert json.loads(call.messages.rest) == [{"role": "user", "content": [text, image]}]
    [medium] = call.media
    assert (medium.kind, medium.media_type, medium.unproven) == ("image", "image/png", False)
    assert blob_store.of(bench.settings).get(medium.blob or "") == base64.b64decode(clients.PIXEL)


class Weather(BaseModel):
    """What the model is held to."""

    city: str
    degrees: int | None = None


@of(*CLIENTS, Vertex)
@streams
async def test_structured_output_is_parsed_and_held_to_a_grammar(
    client: Client, bench: Bench, scripted: ScriptedEngine, stream: bool
) -> None:
    [reply] = await client.ask([client.user("weather?")], stream, schema=Weather)
    assert reply.parsed == Weather(city="Bern", degrees=21)
    [call] = await bench.calls(1)
    assert call.sampling.grammar
    [sampled] = scripted.record.calls("t.0")
    held_to = sampled.parameters["response_format"]["json_schema"]
    properties = held_to["schema"]["properties"]
    assert (held_to["strict"], sorted(properties), properties["city"]["type"]) == (True, ["city", "degrees"], "string")


@of(*CLIENTS)
@streams
async def test_an_answer_that_reaches_its_limit_says_so(client: Client, bench: Bench, stream: bool) -> None:
    [reply] = await client.ask([client.user("weather?")], stream, limit=2)
    assert (reply.stop, reply.usage[1]) == (client.stops[2], 2)
    [call] = await bench.calls(1)
    assert (call.finish_reason, len(unpack_ids(call.sampled))) == ("length", 2)


@of(Chat, Generate)
@streams
async def test_each_choice_is_a_call_of_its_own(
    client: Client, bench: Bench, scripted: ScriptedEngine, stream: bool
) -> None:
    replies = await client.ask([client.user("hi")], stream, choices=3)
    calls = sorted(await bench.calls(3), key=lambda call: call.choice)
    assert [call.choice for call in calls] == [0, 1, 2]
    messages = [msgspec.json.decode(call.answer, type=Message) for call in calls]
    assert [(reply.text, reply.reasoning) for reply in replies] == [
        (message.content, message.reasoning or "") for message in messages
    ]


@of(Responses, Messages, Generate, Vertex)
async def test_tokens_are_counted_and_nothing_is_sampled(client: Any, scripted: ScriptedEngine) -> None:
    counted = await client.count([client.user("weather?")])
    assert not scripted.record.calls("t.0")
    [reply] = await client.ask([client.user("weather?")], system=False)
    assert counted == reply.usage[0]


@of(Chat, Messages, Generate)
async def test_models_are_listed_and_described(client: Any) -> None:
    assert set(await client.models()) == {"polar-scripted"}


@of(*CLIENTS)
@streams
async def test_refusals_are_the_clients_own_errors(kind: type[Any], client: Client, proxy: Proxy, stream: bool) -> None:
    async with kind(proxy.url, "sk-unknown") as stranger:
        for asking, turn, refusal, words in (
            (client, client.unreadable, Refusal.INVALID, r"\[0\]"),
            (client, client.user("work " * CONTEXT), Refusal.CONTEXT_LENGTH, client.overflow),
            (stranger, client.user("hi"), Refusal.UNAUTHENTICATED, None),
        ):
            with pytest.raises(client.error, match=words) as refused:
                await asking.ask([turn], stream, system=False)
            status = getattr(refused.value, "status_code", None) or getattr(refused.value, "code", None)
            assert (status, client.word(refused.value)) == (refusal.status, client.words[refusal])


@of(*CLIENTS)
@pytest.mark.parametrize(("status", "stream"), [(429, True), (503, False), (500, True)])
async def test_the_clients_own_retries_ride_a_fault_out(
    kind: type[Any],
    proxy: Proxy,
    bench: Bench,
    scripted: ScriptedEngine,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    stream: bool,
) -> None:
    monkeypatch.setattr("proxy.engines.retry.PAUSES_S", ())
    # A proxy that was answered with 500 makes a request of its own.
    scripted.faults.add(Status(status=status, retry_after_s=1, times=2 if status == 500 else 1))
    async with kind(proxy.url, bench.key(), retries=1) as client:
        [reply] = await client.ask([client.user("weather?")], stream)
    failed, answered = await bench.calls(2)
    assert failed.outcome is CallOutcome.FAILED
    assert kind is Generate or (answered.lineage or {})["retry"] == "1"
    assert answered.client
    assert answered.client == failed.client
    check(client, reply, answered, scripted.record.calls("t.0")[-1])


@of(*CLIENTS)
@pytest.mark.usefixtures("impatient")
async def test_keep_alives_before_an_answer_are_no_events_to_the_client(
    client: Client, bench: Bench, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Slow(delay_s=0.2))
    [reply] = await client.ask([client.user("weather?")], stream=True)
    check(client, reply, (await bench.calls(1))[0], scripted.record.calls("t.0")[0])


@of(Chat, Responses, Messages)
@pytest.mark.usefixtures("impatient")
async def test_a_stream_that_fails_after_its_headers_says_so(
    client: Any, bench: Bench, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Slow(delay_s=60))
    events = await client.opened([client.user("weather?")])
    await bench.close_key()
    with pytest.raises(client.error) as failed:
        async for _ in events:
            pass
    assert client.word(failed.value) == client.words[Refusal.CLOSED]
    [call] = await bench.calls(1)
    assert call.outcome is CallOutcome.ABANDONED
