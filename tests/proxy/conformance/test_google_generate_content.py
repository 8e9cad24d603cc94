"""Google's official client against a proxy: what it saw is what the log holds. The engine is the scripted one, Kafka is real."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from google import genai
from google.genai import errors
from google.genai.types import (
    Candidate,
    Content,
    FinishReason,
    FunctionDeclaration,
    GenerateContentConfig,
    GenerateContentResponse,
    HttpOptions,
    HttpRetryOptions,
    Part,
    ThinkingConfig,
    Tool,
)
from pydantic import BaseModel

from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Slow, Status
from polar.scripted.scripts import ScriptCall, ScriptTurn
from proxy.app import Proxy
from proxy.chat import Message
from tests.proxy.conformance.conftest import check_growth, script
from tests.proxy.conftest import Bench, proxied
from topics.types.completion import CallOutcome, Completion

# How the client makes its own sessions of aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")


LOOK = ScriptCall("run", {"command": "ls"})
READ = ScriptCall("read", json.dumps({"path": "é.py", "lines": [1, 2.5], "deep": {"some_key": None}}, indent=1))
SCRIPTS = [
    script(
        "work",
        ScriptTurn(text="I look.", reasoning="Where is it?", calls=(LOOK, READ)),
        ScriptTurn(reasoning="Again.", calls=(LOOK,)),
        ScriptTurn(text="Done.", reasoning="All seen."),
    ),
    script("judge", ScriptTurn(text='{"name": "x", "score": 3}')),
    script("blunder", ScriptTurn(text="I try.", calls=(ScriptCall("run", "[1]"),))),
]
TOOLS = Tool(
    function_declarations=[
        FunctionDeclaration(
            name="run", parameters_json_schema={"type": "object", "properties": {"command": {"type": "string"}}}
        ),
        FunctionDeclaration(name="read", description="Reads."),
    ]
)


@pytest.fixture
def scripted() -> ScriptedEngine:
    return ScriptedEngine(SCRIPTS)


def client_of(url: str, key: str, *, vertex: bool = False, retries: int = 1) -> genai.Client:
    retry = HttpRetryOptions(attempts=retries, initial_delay=0.01, max_delay=0.02)
    return genai.Client(api_key=key, vertexai=vertex, http_options=HttpOptions(base_url=url, retry_options=retry))


@pytest.fixture(params=[False, True], ids=["AI Studio", "Vertex"])
async def google(request: pytest.FixtureRequest, proxy: Proxy, bench: Bench) -> AsyncIterator[genai.Client]:
    """The official client with session t.0's key."""
    client = client_of(proxy.url, bench.key(), vertex=request.param)
    yield client
    await client.aio.aclose()


@pytest.fixture
async def studio(proxy: Proxy, bench: Bench) -> AsyncIterator[genai.Client]:
    """The same for AI Studio alone."""
    client = client_of(proxy.url, bench.key())
    yield client
    await client.aio.aclose()


async def asked(
    client: genai.Client, stream: bool, contents: Any, config: GenerateContentConfig | None = None
) -> list[GenerateContentResponse]:
    """The one response, or a stream's."""
    if not stream:
        return [await client.aio.models.generate_content(model="any/model:8b", contents=contents, config=config)]
    chunks = await client.aio.models.generate_content_stream(model="any/model:8b", contents=contents, config=config)
    return [chunk async for chunk in chunks]


def parts_of(responses: list[GenerateContentResponse], index: int = 0) -> list[Part]:
    candidates = [one for response in responses for one in response.candidates or [] if (one.index or 0) == index]
    return [part for one in candidates for part in (one.content and one.content.parts) or []]


def seen(parts: list[Part]) -> tuple[str, str, list[tuple[str | None, str | None, Any]]]:
    """Text, thoughts and calls, as a client understands them."""
    text = "".join(part.text for part in parts if part.text and not part.thought)
    thought = "".join(part.text for part in parts if part.text and part.thought)
    calls = [part.function_call for part in parts if part.function_call is not None]
    return text, thought, [(call.id, call.name, call.args) for call in calls]


def logged(call: Completion) -> tuple[str, str, list[tuple[str | None, str | None, Any]]]:
    message = msgspec.json.decode(call.answer, type=Message)
    calls = [(one.id, one.function.name, json.loads(one.function.arguments)) for one in message.tool_calls]
    assert not isinstance(message.content, list)
    return message.content or "", message.reasoning or "", calls  # type: ignore[return-value] # a list is invariant


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_client_saw_is_on_the_log(
    google: genai.Client, bench: Bench, scripted: ScriptedEngine, stream: bool
) -> None:
    responses = await asked(google, stream, "hi", GenerateContentConfig(system_instruction="be", temperature=0.5))
    [call] = await bench.calls(1)
    [sampled] = scripted.record.calls("t.0")
    last = responses[-1]
    assert {response.response_id for response in responses} == {call.call_id}
    assert (call.dialect, call.model_requested, call.stream) == ("google_generate_content", "any/model:8b", stream)
    assert seen(parts_of(responses)) == logged(call)
    assert last.usage_metadata is not None
    assert last.usage_metadata.candidates_token_count == len(sampled.token_ids)
    assert last.usage_metadata.prompt_token_count == len(sampled.prompt_token_ids)
    assert [candidate.finish_reason for candidate in last.candidates or []] == [FinishReason.STOP]
    assert msgspec.json.decode(call.messages.rest) == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "hi"},
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thoughts", [False, True])
async def test_a_chat_with_parallel_calls_only_grows(
    studio: genai.Client, bench: Bench, scripted: ScriptedEngine, stream: bool, thoughts: bool
) -> None:
    config = GenerateContentConfig(tools=[TOOLS], thinking_config=ThinkingConfig(include_thoughts=thoughts))
    chat = studio.aio.chats.create(model="m", config=config)
    told: Any = "work"
    for turn in range(3):
        responses = (
            [one async for one in await chat.send_message_stream(told)] if stream else [await chat.send_message(told)]
        )
        call = (await bench.calls(turn + 1))[turn]
        text, thought, calls = logged(call)
        assert seen(parts_of(responses)) == (text, thought if thoughts else "", calls)
        told = [
            Part.from_function_response(name=name or "", response={"output": f"{name} ran"}) for _, name, _ in calls
        ]

    calls_of_log, books = await bench.calls(3), scripted.record.calls("t.0")
    assert "Done." in books[2].text
    check_growth(scripted)
    for before, call in zip(books, calls_of_log[1:], strict=False):
        assert call.prompt.shared == len(before.prompt_token_ids) + len(before.token_ids)


async def test_calls_without_ids_and_thoughts_are_the_turn_that_was_sampled(
    studio: genai.Client, scripted: ScriptedEngine
) -> None:
    """As Gemini CLI's sub-agents echo a turn: no ids, no thoughts, the signature."""
    config = GenerateContentConfig(tools=[TOOLS], thinking_config=ThinkingConfig(include_thoughts=True))
    parts = parts_of(await asked(studio, True, "work", config))
    for part in parts:
        if part.function_call is not None:
            part.function_call.id = None
    answers = [Part.from_function_response(name=name, response={"output": ""}) for name in ("run", "read")]
    contents = [
        Content(role="user", parts=[Part(text="work")]),
        Content(role="model", parts=[part for part in parts if not part.thought]),
        Content(role="user", parts=answers),
    ]
    await asked(studio, False, contents, config)
    check_growth(scripted)


async def test_arguments_that_are_no_object_are_malformed_as_at_google(studio: genai.Client, bench: Bench) -> None:
    [response] = await asked(studio, False, "blunder", GenerateContentConfig(tools=[TOOLS]))
    candidates: list[Candidate] = response.candidates or []
    assert [candidate.finish_reason for candidate in candidates] == [FinishReason.MALFORMED_FUNCTION_CALL]
    [call] = await bench.calls(1)
    assert logged(call) == ("I try.", "", [(logged(call)[2][0][0], "run", [1])])


class Verdict(BaseModel):
    name: str
    score: int | None = None


async def test_structured_output_is_parsed_and_held_to_a_grammar(
    google: genai.Client, bench: Bench, scripted: ScriptedEngine
) -> None:
    config = GenerateContentConfig(response_mime_type="application/json", response_schema=Verdict)
    [response] = await asked(google, False, "judge", config)
    assert response.parsed == Verdict(name="x", score=3)
    [call] = await bench.calls(1)
    assert call.sampling.grammar
    [sampled] = scripted.record.calls("t.0")
    schema = sampled.parameters["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["name"]["type"] == "string"
    assert schema["properties"]["score"]["type"] == ["integer", "null"]


@pytest.mark.parametrize("stream", [False, True])
async def test_each_candidate_is_a_call_of_its_own(studio: genai.Client, bench: Bench, stream: bool) -> None:
    responses = await asked(studio, stream, "hi", GenerateContentConfig(candidate_count=2))
    calls = sorted(await bench.calls(2), key=lambda call: call.choice)
    assert [call.choice for call in calls] == [0, 1]
    assert [seen(parts_of(responses, index)) for index in (0, 1)] == [logged(call) for call in calls]


async def test_an_image_reaches_the_engine(studio: genai.Client, bench: Bench) -> None:
    image = Part.from_bytes(data=b"\xfb\xff\xfe", mime_type="image/png")
    await asked(studio, False, [image, "what is it?"])
    [call] = await bench.calls(1)
    assert msgspec.json.decode(call.messages.rest)[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,+//+"}},
        {"type": "text", "text": "what is it?"},
    ]


async def test_tokens_are_counted_and_nothing_is_sampled(google: genai.Client, scripted: ScriptedEngine) -> None:
    counted = await google.aio.models.count_tokens(model="m", contents="hi")
    assert not scripted.record.calls("t.0")
    response = await google.aio.models.generate_content(model="m", contents="hi")
    assert response.usage_metadata is not None
    assert counted.total_tokens == response.usage_metadata.prompt_token_count


async def test_models_are_listed_and_told(studio: genai.Client) -> None:
    assert [model.name async for model in await studio.aio.models.list()] == ["models/polar-scripted"]
    assert (await studio.aio.models.get(model="polar-scripted")).name == "models/polar-scripted"


async def test_a_stream_without_events_is_an_array(proxy: Proxy, bench: Bench, http: Any) -> None:
    url = f"{proxy.url}/v1beta/models/m:streamGenerateContent?key={bench.key()}"
    async with http.post(url, json={"contents": [{"parts": [{"text": "hi"}]}]}) as answer:
        assert answer.content_type == "application/json"
        chunks = [GenerateContentResponse.model_validate(chunk) for chunk in await answer.json()]
    [call] = await bench.calls(1)
    assert seen(parts_of(chunks)) == logged(call)


@pytest.mark.usefixtures("impatient")
async def test_keep_alives_before_the_answer_are_passed_over(
    studio: genai.Client, bench: Bench, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Slow(delay_s=0.2))
    responses = await asked(studio, True, "hi")
    [call] = await bench.calls(1)
    assert seen(parts_of(responses)) == logged(call)


@pytest.mark.usefixtures("impatient")
async def test_an_error_inside_a_stream_is_raised(studio: genai.Client, scripted: ScriptedEngine) -> None:
    scripted.faults.add(Status(status=500, times=9))
    with pytest.raises(errors.ServerError) as refused:
        await asked(studio, True, "hi")
    assert (refused.value.code, refused.value.status) == (502, "INTERNAL")


@pytest.mark.usefixtures("impatient")
async def test_overload_is_told_with_the_time_to_come_again_and_the_client_does(
    proxy: Proxy, bench: Bench, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Status(status=429, retry_after_s=60, times=3))
    once, patient = client_of(proxy.url, bench.key()), client_of(proxy.url, bench.key(), retries=3)
    with pytest.raises(errors.ClientError) as refused:
        await asked(once, False, "hi")
    assert (refused.value.code, refused.value.status) == (429, "RESOURCE_EXHAUSTED")
    [detail] = refused.value.details["error"]["details"]
    assert detail["@type"].endswith("RetryInfo")
    assert detail["retryDelay"] == refused.value.response.headers["Retry-After"] + "s"
    assert parts_of(await asked(patient, False, "hi"))
    assert [call.outcome for call in await bench.calls(3)][-1] is CallOutcome.ANSWERED
    for client in (once, patient):
        await client.aio.aclose()


async def test_an_overflow_and_bad_keys_are_told_as_google_tells_them(bench: Bench) -> None:
    async with running(ScriptedEngine(max_model_len=100)) as url, proxied(bench, url) as proxy:
        client, stranger = client_of(proxy.url, bench.key()), client_of(proxy.url, "sk-unknown")
        with pytest.raises(
            errors.ClientError, match=r"The input token count .*exceeds the maximum number of tokens"
        ) as overflow:
            await asked(client, False, "one two " * 300)
        with pytest.raises(errors.ClientError) as unknown:
            await asked(stranger, False, "hi")
        for used in (client, stranger):
            await used.aio.aclose()
    assert (overflow.value.code, overflow.value.status) == (400, "INVALID_ARGUMENT")
    assert (unknown.value.code, unknown.value.status) == (401, "UNAUTHENTICATED")
