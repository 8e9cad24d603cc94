"""The running app on a real port. Its clients are the official `openai` client and, where bytes matter, aiohttp."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import aiohttp
import numpy as np
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from polar.scripted.app import running
from polar.scripted.engine import Engine
from polar.scripted.faults import Slow, Status
from polar.scripted.record import Record, Sampled
from polar.scripted.scripts import Script, ScriptCall, ScriptTurn, Variant

DEADLINE_S = 10.0
CHAT = "/v1/chat/completions"
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("read", "bash")
]
ASK: Any = [{"role": "user", "content": "Mend it — é 🎉"}]
WITH_IDS: Any = {"logprobs": True, "top_logprobs": 0, "extra_body": {"return_token_ids": True, "session_id": "t.0"}}
SCRIPT = Script(
    "mend",
    "Mend",
    (
        Variant(
            (
                ScriptTurn(
                    "I'll read it: <tool_call> 🎉\n",
                    "Which file?",
                    (ScriptCall("read", {"path": "é.py"}), ScriptCall("bash", '{"command" : "ls | \\"x\\""}')),
                ),
                ScriptTurn("", "", (ScriptCall("bash", {"command": "true"}),)),
                ScriptTurn("Done."),
            )
        ),
        Variant((ScriptTurn("Slowly.", delay_s=3600),)),
        Variant((ScriptTurn("At last.", fault=Status(status=503, retry_after_s=0)),)),
    ),
)


class Watched(Record):
    """A record that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._added = asyncio.Event()

    def append(self, sampled: Sampled) -> None:
        super().append(sampled)
        self._added.set()

    async def first(self) -> Sampled:
        """The one call that there is, once there is one."""
        await asyncio.wait_for(self._added.wait(), DEADLINE_S)
        (sampled,) = self.calls()
        return sampled


@pytest.fixture
def record() -> Watched:
    return Watched()


@pytest.fixture
def engine(record: Watched) -> Engine:
    return Engine([SCRIPT], max_model_len=2000, record=record)


@pytest.fixture
async def url(engine: Engine) -> AsyncIterator[str]:
    async with running(engine) as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client, which must not hide faults by trying again."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture
async def http(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with aiohttp.ClientSession(url, timeout=timeout) as http:
        yield http


async def ask(client: openai.AsyncOpenAI, messages: Any = ASK, **fields: Any) -> ChatCompletion:
    answer = await client.chat.completions.create(
        model="polar-scripted", messages=messages, tools=TOOLS, **(WITH_IDS | fields)
    )
    assert isinstance(answer, ChatCompletion)
    return answer


async def ask_stream(client: openai.AsyncOpenAI, messages: Any = ASK, **fields: Any) -> list[ChatCompletionChunk]:
    stream = await client.chat.completions.create(
        model="polar-scripted", messages=messages, tools=TOOLS, stream=True, **(WITH_IDS | fields)
    )
    return [chunk async for chunk in stream]


async def post(http: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any]:
    """Status and JSON of the answer."""
    async with http.post(path, json=body) as answer:
        return answer.status, await answer.json()


def extra(thing: Any, name: str) -> Any:
    """A field that the official client doesn't know, but keeps."""
    return (thing.model_extra or {}).get(name)


def as_history(answer: ChatCompletion) -> dict[str, Any]:
    """The answer as harnesses repeat it."""
    message = answer.choices[0].message
    history = message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
    return history | {"reasoning": extra(message, "reasoning")}


async def test_an_answer_carries_ids_logprobs_and_tool_calls_and_is_in_the_record(
    engine: Engine, client: openai.AsyncOpenAI
) -> None:
    answer = await ask(client)
    (choice,) = answer.choices
    message = choice.message
    assert choice.finish_reason == "tool_calls"
    assert message.content == "I'll read it: <tool_call> 🎉\n"
    assert extra(message, "reasoning") == "Which file?"
    calls = message.model_dump()["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "read", "arguments": '{"path":"é.py"}'},
        {"name": "bash", "arguments": '{"command" : "ls | \\"x\\""}'},
    ]
    assert len({call["id"] for call in calls}) == 2
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    (record,) = engine.record.calls("t.0")
    assert (record.token_ids, record.finish_reason) == (extra(choice, "token_ids"), choice.finish_reason)
    assert record.logprobs == [entry.logprob for entry in choice.logprobs.content]
    assert record.prompt_token_ids == extra(answer, "prompt_token_ids")
    assert (record.request_id, record.script, record.outcome) == (answer.id, "mend/0/0", "completed")
    assert record.parameters["session_id"] == "t.0"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(record.prompt_token_ids)
    assert answer.usage.completion_tokens == len(record.token_ids)
    assert all(bytes(entry.bytes or []).decode(errors="replace") == entry.token for entry in choice.logprobs.content)
    assert all(entry.top_logprobs == [] for entry in choice.logprobs.content)


async def test_logprobs_are_float32_not_positive_and_the_same_for_the_same_seed_and_call() -> None:
    drawn = []
    for seed in (3, 3, 4):
        engine = Engine(seed=seed)
        async with running(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            for _ in range(2):
                await ask(client)
        drawn.append([(call.text, call.logprobs) for call in engine.record.calls()])
    for _, logprobs in drawn[0]:
        assert all(value <= 0 and math.isfinite(value) for value in logprobs)
        assert np.array(logprobs, np.float32).astype(float).tolist() == logprobs
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_a_stream_says_what_a_body_says(client: openai.AsyncOpenAI, engine: Engine, turns: int) -> None:
    messages = ASK + [{"role": "assistant", "content": "…"}, {"role": "user", "content": "go on"}] * turns
    fields = {"max_tokens": 30} if turns == 1 else {}
    chunks = await ask_stream(client, messages, stream_options={"include_usage": True}, **fields)
    *chunks, usage = chunks
    (record,) = engine.record.calls()
    first, *others = [extra(chunk, "prompt_token_ids") for chunk in chunks]
    assert (first, set(others)) == (record.prompt_token_ids, {None})
    choices = [chunk.choices[0] for chunk in chunks]
    assert [i for choice in choices for i in extra(choice, "token_ids") or []] == record.token_ids
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content or []]
    assert [entry.logprob for entry in entries] == record.logprobs
    assert [choice.finish_reason for choice in choices] == [*[None] * (len(choices) - 1), record.finish_reason]
    assert usage.usage is not None
    assert (usage.choices, usage.usage.completion_tokens) == ([], len(record.token_ids))
    calls: dict[int, dict[str, str]] = {}
    for piece in (piece for choice in choices for piece in choice.delta.tool_calls or []):
        assert piece.function is not None
        known = calls.setdefault(piece.index, {"name": "", "arguments": ""})
        known["name"] += piece.function.name or ""
        known["arguments"] += piece.function.arguments or ""
    if turns < 3:  # filler differs from call to call
        message = (await ask(client, messages, **fields)).choices[0].message
        assert "".join(choice.delta.content or "" for choice in choices) == (message.content or "")
        assert "".join(extra(choice.delta, "reasoning") or "" for choice in choices) == (
            extra(message, "reasoning") or ""
        )
        assert list(calls.values()) == [call["function"] for call in message.model_dump()["tool_calls"]]


async def test_a_conversation_as_the_client_repeats_it_only_grows_and_the_record_is_served(
    engine: Engine, client: openai.AsyncOpenAI, http: aiohttp.ClientSession
) -> None:
    messages = list(ASK)
    for _ in range(4):
        answer = await ask(client, messages)
        messages.append(as_history(answer))
        calls = messages[-1].get("tool_calls") or []
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "é.py\n"} for call in calls]
        messages += [] if calls else [{"role": "user", "content": [{"type": "text", "text": "\nAnd?"}]}]
    records = engine.record.calls()
    assert [record.script for record in records] == ["mend/0/0", "mend/0/1", "mend/0/2", None]
    for before, after in pairwise(records):
        known = before.prompt_token_ids + before.token_ids
        assert after.prompt_token_ids[: len(known)] == known
    async with http.get("/scripted/record") as served:
        lines = (await served.text()).splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == [record.request_id for record in records]


async def test_where_no_script_fits_8_to_24_tokens_of_filler_end_the_turn(
    engine: Engine, client: openai.AsyncOpenAI
) -> None:
    for _ in range(30):
        answer = await ask(client, [{"role": "user", "content": "hi"}])
        assert answer.choices[0].finish_reason == "stop"
    records = engine.record.calls()
    end_of_turn = engine.tokenizer.special_ids["<|im_end|>"]
    assert {record.token_ids[-1] for record in records} == {end_of_turn}
    assert {8 <= len(record.token_ids) - 1 <= 24 for record in records} == {True}
    assert len({record.text for record in records}) == 30
    for record in records:
        assert engine.tokenizer.encode(record.text.removesuffix("<|im_end|>")).tolist() == record.token_ids[:-1]


async def test_max_tokens_cuts_the_answer_off_and_a_turn_whose_tools_are_not_offered_is_not_played(
    engine: Engine, client: openai.AsyncOpenAI
) -> None:
    unplayed = await client.chat.completions.create(model="polar-scripted", messages=ASK, user="t.0")
    assert (unplayed.choices[0].finish_reason, unplayed.choices[0].message.tool_calls) == ("stop", [])
    answer = await ask(client, max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert len(extra(answer.choices[0], "token_ids")) == 3 == len(engine.record.calls()[-1].token_ids)


async def test_a_stop_string_ends_the_answer_in_body_and_stream(engine: Engine, client: openai.AsyncOpenAI) -> None:
    answer = await ask(client, stop=["nowhere", "read"])
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == ("I'll ", [], "stop")
    assert extra(choice, "stop_reason") == "read"
    (record,) = engine.record.calls()
    assert record.text == "<think>Which file?</think>I'll read"
    assert record.token_ids == extra(choice, "token_ids")
    chunks = await ask_stream(client, stop="read")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "I'll "
    assert (chunks[-1].choices[0].finish_reason, extra(chunks[-1].choices[0], "stop_reason")) == ("stop", "read")


async def test_usage_tells_reasoning_and_what_the_session_had_computed(
    engine: Engine, client: openai.AsyncOpenAI
) -> None:
    first = await ask(client)
    assert first.usage is not None
    assert first.usage.prompt_tokens_details is not None
    assert first.usage.completion_tokens_details is not None
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert first.usage.completion_tokens_details.reasoning_tokens == len(engine.tokenizer.encode("Which file?"))
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "-"} for call in first.choices[0].message.tool_calls or []
    ]
    second = await ask(client, [*ASK, as_history(first), *results])
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.total_tokens // 16 * 16


async def test_an_image_is_a_text_of_its_own_in_the_prompt(engine: Engine, client: openai.AsyncOpenAI) -> None:
    for data in ("AAAA", "AAAB", "AAAA"):
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        await ask(client, [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}])
    first, other, again = (engine.tokenizer.decode(call.prompt_token_ids) for call in engine.record.calls())
    assert first == again != other
    assert "see\n[image " in first


async def test_a_form_that_the_request_demands_is_kept_to_where_no_script_fits(client: openai.AsyncOpenAI) -> None:
    filler: Any = [{"role": "user", "content": "anything"}]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    json_schema = {"name": "x", "schema": schema}
    answer = await ask(client, filler, response_format={"type": "json_schema", "json_schema": json_schema})
    assert answer.choices[0].message.content == '{"n":0}'
    answer = await ask(client, filler, response_format={"type": "json_object"})
    assert json.loads(answer.choices[0].message.content or "") == {"text": "text"}
    for choice, name in (("required", "read"), ({"type": "function", "function": {"name": "bash"}}, "bash")):
        (answered,) = (await ask(client, filler, tool_choice=choice)).choices
        (call,) = answered.message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, call.function.arguments, answered.finish_reason) == (name, "{}", "tool_calls")
    assert (await ask(client, tool_choice="required")).choices[0].message.content, "a script is used if one fits"


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({}, None), ({"logprobs": True}, None), ({"logprobs": True, "top_logprobs": 2}, 2)],
)
async def test_ids_and_logprobs_come_only_where_they_are_asked_for(
    client: openai.AsyncOpenAI, fields: Any, logprobs: int | None
) -> None:
    answer = await client.chat.completions.create(model="polar-scripted", messages=ASK, **fields)
    (choice,) = answer.choices
    assert extra(choice, "token_ids") is extra(answer, "prompt_token_ids") is None
    if logprobs is None:
        assert choice.logprobs is None
    else:
        assert choice.logprobs is not None
        for entry in choice.logprobs.content or []:
            top = [(other.token, other.logprob) for other in entry.top_logprobs]
            assert top[0] == (entry.token, entry.logprob)
            assert len(top) == logprobs


@pytest.mark.parametrize(
    ("fields", "status", "complaint"),
    [
        ({"n": 2}, 400, "n:"),
        ({"top_logprobs": 0}, 400, "top_logprobs"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 2000}, 400, "maximum context length is 2000"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, 400, "maximum context length is 2000"),
        ({"messages": [{"role": "robot", "content": ""}]}, 400, "robot"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "'image_url'"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, 400, "'input_audio'"),
        ({"stop": ["x", ""]}, 400, "stop"),
        ({"messages": 3}, 400, "messages"),
        ({"stream_options": {}}, 400, "stream_options"),
        ({"model": "other"}, 404, "`other` does not exist"),
    ],
)
async def test_a_bad_request_gets_vllms_error_shape(
    engine: Engine, http: aiohttp.ClientSession, fields: Any, status: int, complaint: str
) -> None:
    found, body = await post(http, CHAT, {"messages": ASK} | fields)
    error = body["error"]
    assert found == status == error["code"]
    assert complaint in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert engine.record.calls() == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": [{"role": "user", "content": "\\ud800"}]}'])
async def test_a_body_that_is_no_request_gets_400(http: aiohttp.ClientSession, body: bytes) -> None:
    for path in (CHAT, "/tokenize", "/scripted/faults"):
        async with http.post(path, data=body) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["type"] == "BadRequestError"


async def test_it_says_what_it_is_wherever_it_shows(
    url: str, client: openai.AsyncOpenAI, http: aiohttp.ClientSession
) -> None:
    (model,) = (await client.models.list()).data
    assert (model.id, model.owned_by, extra(model, "max_model_len")) == ("polar-scripted", "polar-scripted", 2000)
    for path in ("/health", "/version", "/v1/models", "/absent"):
        async with http.get(path) as answer:
            assert answer.headers["Server"].startswith("polar-scripted/")
            assert answer.status == (404 if path == "/absent" else 200)
            if answer.status == 200:
                assert "not a model" in await answer.text()


async def test_tokenize_gives_ids_of_a_prompt_or_text_and_detokenize_the_text_of_valid_ids(
    engine: Engine, client: openai.AsyncOpenAI, http: aiohttp.ClientSession
) -> None:
    await ask(client)
    _, tokenized = await post(http, "/tokenize", {"messages": ASK, "tools": TOOLS})
    assert tokenized["tokens"] == engine.record.calls()[0].prompt_token_ids
    assert tokenized["count"] == len(tokenized["tokens"])
    _, tokenized = await post(http, "/tokenize", {"prompt": "hi there"})
    assert engine.tokenizer.decode(tokenized["tokens"]) == "hi there"
    ids = [*engine.tokenizer.encode("hi there"), engine.tokenizer.special_ids["<|im_end|>"]]
    detokenized = await post(http, "/detokenize", {"model": "polar-scripted", "tokens": ids})
    assert detokenized == (200, {"prompt": "hi there<|im_end|>"})
    for tokens in ([-1], [engine.tokenizer.size], ["x"]):
        assert (await post(http, "/detokenize", {"tokens": tokens}))[0] == 400


async def test_faults_are_listed_counted_and_cleared_over_http(http: aiohttp.ClientSession) -> None:
    fault, hang = {"kind": "status", "status": 429, "retry_after_s": 7}, {"kind": "hang", "times": 2}
    assert await post(http, "/scripted/faults", fault) == (200, {"faults": [fault]})
    await post(http, "/scripted/faults", hang)
    async with http.post(CHAT, json={"messages": ASK}) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "7")
        assert (await answer.json())["error"]["type"] == "RateLimitError"
    async with http.get("/scripted/faults") as answer:
        assert await answer.json() == {"faults": [hang]}
    async with http.delete("/scripted/faults") as answer:
        assert await answer.json() == {"faults": []}
    assert (await post(http, CHAT, {"messages": ASK}))[0] == 200


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "burn"},
        {"kind": "status", "status": 200},
        {"kind": "slow", "delay_s": -1},
        {"kind": "cut", "after_bytes": 0},
        {"kind": "garbage", "form": "loud"},
        {"kind": "hang", "times": 0},
        {"kind": "hang", "time": 1},
    ],
)
async def test_a_fault_that_there_is_not_is_refused(http: aiohttp.ClientSession, fault: Any) -> None:
    assert (await post(http, "/scripted/faults", fault))[0] == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_connection_breaks_off_before_the_headers_or_after_so_many_bytes(
    record: Watched, http: aiohttp.ClientSession, stream: bool
) -> None:
    request = {"messages": ASK, "stream": stream, "tools": TOOLS, "session_id": "t.0"}
    await http.post("/scripted/faults", json={"kind": "cut"})
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await http.post(CHAT, json=request)
    assert record.calls() == []
    await http.post("/scripted/faults", json={"kind": "cut", "after_bytes": 300})
    got = bytearray()
    async with http.post(CHAT, json=request) as answer:
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):  # noqa: PT012 - reads until the cut
            while piece := await answer.content.readany():
                got += piece
    assert len(got) == 300
    sampled = await record.first()
    assert (sampled.fault, sampled.outcome) == ("cut", "aborted" if stream else "completed")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "form", ["no_token_ids", "length_mismatch", "nan_logprobs", "empty_choices", "not_json", "longer_prompt"]
)
async def test_garbage_is_garbage_and_the_record_keeps_the_truth(
    engine: Engine, http: aiohttp.ClientSession, form: str, stream: bool
) -> None:
    await http.post("/scripted/faults", json={"kind": "garbage", "form": form})
    request = {"messages": ASK, "stream": stream, "logprobs": True, "top_logprobs": 0, "return_token_ids": True}
    async with http.post(CHAT, json=request) as answer:
        assert answer.status == 200
        text = await answer.text()
    (record,) = engine.record.calls()
    assert len(record.token_ids) == len(record.logprobs) > 0
    assert record.fault == f"garbage:{form}"
    texts = [line.removeprefix("data: ") for line in text.split("\n\n")[:-2]] if stream else [text]
    if form == "not_json":
        with pytest.raises(json.JSONDecodeError):
            json.loads(texts[0])
        return
    payloads = [json.loads(one) for one in texts]
    choices = [choice for payload in payloads for choice in payload["choices"]]
    ids = [i for choice in choices for i in choice.get("token_ids") or []]
    logprobs = [e["logprob"] for choice in choices if choice["logprobs"] for e in choice["logprobs"]["content"]]
    assert (choices == []) == (form == "empty_choices")
    assert (ids == []) == (form in ("no_token_ids", "empty_choices"))
    assert (len(logprobs) < len(record.logprobs)) == (form in ("length_mismatch", "empty_choices"))
    assert any(math.isnan(value) for value in logprobs) == (form == "nan_logprobs")


@pytest.mark.parametrize("session", ["t.0", "t.1"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_ends_the_call_which_is_recorded_aborted(
    engine: Engine, record: Watched, http: aiohttp.ClientSession, session: str, stream: bool
) -> None:
    if session == "t.0":  # t.1 is slow by its script
        engine.faults.add(Slow(delay_s=0.0 if stream else 3600.0, chunk_delay_s=3600.0))
    request = {"messages": ASK, "stream": stream, "tools": TOOLS, "session_id": session}
    call = asyncio.create_task(http.post(CHAT, json=request))
    if stream and session == "t.0":
        answer = await call
        await answer.content.readany()
        answer.close()
    else:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0.2)
    sampled = await record.first()
    assert (sampled.outcome, sampled.finish_reason, sampled.session_id) == ("aborted", None, session)
    assert sampled.token_ids == sampled.logprobs == []


async def test_a_hanging_call_ends_with_its_client_and_samples_nothing(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    await http.post("/scripted/faults", json={"kind": "hang"})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(http.post(CHAT, json={"messages": ASK}), 0.2)
    assert (await post(http, CHAT, {"messages": ASK}))[0] == 200
    assert len(engine.record.calls()) == 1


async def test_a_turns_own_fault_befalls_each_session_as_often_as_it_says(client: openai.AsyncOpenAI) -> None:
    for session in ("t.2", "u.2"):
        fields = {"extra_body": {"session_id": session}}
        with pytest.raises(openai.InternalServerError) as refusal:
            await ask(client, **fields)
        assert refusal.value.status_code == 503
        assert (await ask(client, **fields)).choices[0].message.content == "At last."


async def test_stopping_breaks_off_a_call_that_will_not_end(engine: Engine) -> None:
    engine.faults.add(Slow(chunk_delay_s=3600))
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as http:
        async with running(engine) as url:
            answer = await http.post(f"{url}/v1/chat/completions", json={"messages": ASK, "stream": True})
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert [call.outcome for call in engine.record.calls()] == ["aborted"]
