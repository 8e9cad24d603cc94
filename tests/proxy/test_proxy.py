"""Calls through a proxy: what a harness sees, what lies on the log. The engine is the scripted one, Kafka is real."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from prometheus_client.parser import text_string_to_metric_families

from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Cut, Fault, Garbage, Hang, Slow, Status
from proxy.addresses import Binding
from proxy.app import Proxy
from proxy.chat import Answer, ChatRequest, Message, Usage
from proxy.dialects.openai_chat import OpenAIChat
from proxy.engines.pool import Engines
from proxy.engines.replicas import Replicas
from proxy.engines.vllm_chat import VllmChat
from tests.proxy.conftest import Bench, proxied
from tests.waiting import eventually
from topics import completions
from topics.environment.redaction import PREFIX
from topics.fleet import PolicyVersion
from topics.types.completion import CallOutcome, PolicySpan
from topics.types.session import Status as SessionStatus
from topics.types.tokens import unpack_ids, unpack_logprobs

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def post(
    http: aiohttp.ClientSession, proxy: Proxy, bench: Bench, **body: Any
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """One request with session t.0's key, without a client library; `body` is `json` or `data`."""
    headers = {"Authorization": f"Bearer {bench.key()}"}
    return http.post(proxy.url + "/v1/chat/completions", headers=headers, **body)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is asked again sooner, so that faults which last are told sooner."""
    monkeypatch.setattr("proxy.engines.retry.PAUSES_S", (0.05, 0.05))


async def test_an_answer_is_on_the_log_with_the_engines_very_tokens(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine
) -> None:
    answer = await client.chat.completions.create(model="any", messages=HI)
    [call] = await bench.calls(1)
    [sampled] = scripted.record.calls("t.0")

    assert (call.call_id, call.outcome, call.dialect, call.engine) == (
        answer.id,
        CallOutcome.ANSWERED,
        "openai_chat",
        "default",
    )
    assert (call.session_id, call.attempt, call.claim_id) == ("t.0", 1, "c1")
    assert unpack_ids(call.prompt.rest).tolist() == sampled.prompt_token_ids
    assert unpack_ids(call.sampled).tolist() == sampled.token_ids
    assert unpack_logprobs(call.logprobs).tolist() == sampled.logprobs
    assert msgspec.json.decode(call.answer, type=Message).content == answer.choices[0].message.content
    assert msgspec.json.decode(call.messages.rest) == HI
    assert (call.model_requested, call.model_served, call.finish_reason) == ("any", "polar-scripted", "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(sampled.token_ids)
    assert call.received_at <= call.completed_at <= time.time() * 1000


async def test_a_question_beside_the_work_is_a_side_call(client: AsyncOpenAI, bench: Bench) -> None:
    tools: list[ChatCompletionToolParam] = [{"type": "function", "function": {"name": "look"}}]

    async def ask(system: str, tools: list[ChatCompletionToolParam]) -> None:
        messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": system}, *HI]
        await client.chat.completions.create(model="any", messages=messages, tools=tools or openai.omit)

    await ask("You are an agent.", tools)
    await ask("Name this conversation.", [])
    await ask("You are an agent.", [])
    kinds = [(call.kind, call.kind_rule) for call in await bench.calls(3)]
    assert kinds == [("main", None), ("side", "no_tools_beside_work"), ("main", None)]


async def test_the_keys_sampling_overrides_the_harnesses(proxy: Proxy, bench: Bench, scripted: ScriptedEngine) -> None:
    key = bench.key(sampling={"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0})
    async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key=key) as client:
        await client.chat.completions.create(model="m", messages=HI, temperature=0, top_p=0.5, max_tokens=50)
    [call] = await bench.calls(1)
    [sampled] = scripted.record.calls("t.0")
    assert (call.sampling.temperature, call.sampling.top_p, call.sampling.top_k) == (1, 1, -1)
    assert (call.sampling.max_tokens, call.sampling.truncated, call.sampling.grammar) == (50, False, False)
    assert (sampled.parameters["temperature"], sampled.parameters["top_p"]) == (1, 1)


async def test_a_truncated_or_constrained_call_is_marked(client: AsyncOpenAI, bench: Bench) -> None:
    await client.chat.completions.create(model="m", messages=HI, top_p=0.5, response_format={"type": "json_object"})
    [call] = await bench.calls(1)
    assert (call.sampling.truncated, call.sampling.grammar) == (True, True)
    assert call.sampling.grammar_source == "response_format"


@pytest.mark.parametrize(
    ("fault", "code", "status"),
    [
        (Garbage(form="no_token_ids"), "no_token_ids", 502),
        (Garbage(form="length_mismatch"), "length_mismatch", 502),
        (Garbage(form="nan_logprobs"), "bad_logprobs", 502),
        (Garbage(form="not_json"), "malformed", 502),
        (Garbage(form="empty_choices"), "malformed", 502),
        (Cut(times=9), "cut", 502),
        (Cut(after_bytes=40, times=9), "cut", 502),
        (Hang(), "timeout", 502),
        (Status(status=500, times=9), "server_error", 502),
        (Status(status=503, times=9), "overloaded", 429),
        (Status(status=429, retry_after_s=60, times=9), "overloaded", 429),
    ],
    ids=str,
)
@pytest.mark.usefixtures("impatient")
async def test_an_engines_fault_is_a_failed_call_and_a_retriable_error(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine, fault: Fault, code: str, status: int
) -> None:
    scripted.faults.add(fault)
    with pytest.raises(openai.APIStatusError) as refused:
        await client.chat.completions.create(model="m", messages=HI)
    assert refused.value.status_code == status
    assert "retry-after" in refused.value.response.headers or status != 429
    [call] = await bench.calls(1)
    assert (call.outcome, call.error and call.error.code) == (CallOutcome.FAILED, code)
    assert (call.sampled, call.logprobs, call.answer) == (b"", b"", b"")
    assert msgspec.json.decode(call.messages.rest) == HI


async def test_keys_that_are_no_good_are_401_in_openais_shape(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession
) -> None:
    forged = bench.key()
    forged = forged[:-4] + ("aaaa" if not forged.endswith("aaaa") else "bbbb")
    expired = bench.key(expires_at=int(time.time()) - 3600)
    bare, foreign = bench.key().removeprefix(PREFIX), bench.key(namespace="other")
    for key in ["sk-other", bare, foreign, forged, expired, "sk-polar-", "Ünïcode"]:
        for path, method in [("/v1/chat/completions", "POST"), ("/v1/models", "GET")]:
            async with http.request(method, proxy.url + path, headers={"Authorization": f"Bearer {key}"}) as response:
                told = await response.text()
                assert response.status == 401
                assert json.loads(told)["error"]["code"] == "invalid_api_key"
                assert key not in told
    async with http.post(proxy.url + "/v1/chat/completions") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (401, "invalid_api_key")


async def test_a_closed_key_is_409_and_not_asked_again(client: AsyncOpenAI, bench: Bench) -> None:
    await client.chat.completions.create(model="m", messages=HI)
    await bench.close_key()

    async def refused() -> bool:
        try:
            await client.chat.completions.create(model="m", messages=HI)
        except openai.ConflictError as error:
            return (error.code, error.response.headers["x-should-retry"]) == ("session_closed", "false")
        return False

    await eventually(refused)


async def test_a_proxy_knows_what_was_closed_minutes_before_it_started(
    bench: Bench, engine_url: str, http: aiohttp.ClientSession
) -> None:
    await bench.close_key()
    body = {"model": "m", "messages": HI}
    async with proxied(bench, engine_url) as proxy:
        for claim, status in [("c1", 409), ("c2", 200)]:
            headers = {"Authorization": f"Bearer {bench.key('t.0', claim)}"}
            async with http.post(proxy.url + "/v1/chat/completions", headers=headers, json=body) as response:
                assert response.status == status


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/any/name%3Afree"])
async def test_models_are_listed_with_the_length_of_their_context_as_vllm_does(
    bench: Bench, http: aiohttp.ClientSession, path: str
) -> None:
    async with running(ScriptedEngine(max_model_len=32_768)) as url, proxied(bench, url) as proxy:
        headers = {"Authorization": f"Bearer {bench.key()}"}
        async with http.get(proxy.url + path, headers=headers) as response:
            found = await response.json()
    model = found["data"][0] if "data" in found else found
    assert model["id"] == ("polar-scripted" if "data" in found else "any/name:free")
    assert model["max_model_len"] == 32_768


async def test_a_closed_key_counts_and_lists_nothing(proxy: Proxy, bench: Bench, http: aiohttp.ClientSession) -> None:
    """Neither at a proxy that saw the key close, nor at one that started long after."""

    async def statuses(key: str) -> set[int]:
        headers = {"Authorization": f"Bearer {key}"}
        async with http.get(proxy.url + "/v1/models", headers=headers) as listed:
            pass
        body = {"model": "m", "input": "hi"}
        async with http.post(proxy.url + "/v1/responses/input_tokens", headers=headers, json=body) as counted:
            return {listed.status, counted.status}

    assert await statuses(bench.key()) == {200}
    await bench.close_key()

    async def is_closed() -> bool:
        return await statuses(bench.key()) == {409}

    await eventually(is_closed)

    for name, status in [("old", 200), ("over", 409)]:
        session = f"{name}.0"
        at = await bench.open(session, name)
        if status == 409:
            build = completions.Build(
                session, name, 0, 1, 1, name, SessionStatus.COMPLETED, "prefix_merging", b"{}", "shell"
            )
            await bench.write(build)
        assert await statuses(bench.key(session, name, issued_at=1, **at)) == {status}


async def test_closing_a_key_ends_its_calls_in_flight(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Hang(times=2))
    under_way = [
        asyncio.ensure_future(client.chat.completions.create(model="m", messages=HI)),
        asyncio.ensure_future(client.chat.completions.create(model="m", messages=HI, seed=1, stream=True)),
    ]
    await eventually(lambda: not scripted.faults.pending())
    await bench.close_key()
    for call in under_way:
        with pytest.raises(openai.ConflictError):
            await call
    calls = await bench.calls(2)
    assert {(call.outcome, call.error and call.error.code) for call in calls} == {(CallOutcome.ABANDONED, "closed")}


async def test_a_harness_that_hangs_up_cancels_the_engine_and_is_recorded(
    proxy: Proxy, bench: Bench, scripted: ScriptedEngine, http: aiohttp.ClientSession
) -> None:
    scripted.faults.add(Slow(delay_s=60))
    headers = {"Authorization": f"Bearer {bench.key()}"}
    call = asyncio.ensure_future(
        http.post(proxy.url + "/v1/chat/completions", headers=headers, json={"model": "m", "messages": HI})
    )
    await eventually(lambda: not scripted.faults.pending())
    call.cancel()
    [recorded] = await bench.calls(1)
    assert (recorded.outcome, recorded.error and recorded.error.code) == (CallOutcome.ABANDONED, "hung_up")
    await eventually(lambda: [c.outcome for c in scripted.record.calls("t.0")] == ["aborted"])


async def test_a_stream_that_waits_gets_headers_keep_alives_and_then_its_answer_or_error(
    proxy: Proxy,
    bench: Bench,
    scripted: ScriptedEngine,
    http: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.streaming.QUIET_S", 0.3)
    scripted.faults.add(Slow(delay_s=2.0))
    scripted.faults.add(Hang())

    async def events(seed: int) -> list[bytes]:
        body = {"model": "m", "messages": HI, "stream": True, "seed": seed}
        began = time.monotonic()
        async with post(http, proxy, bench, json=body) as response:
            assert time.monotonic() - began < 2.0
            assert response.content_type == "text/event-stream"
            return (await response.read()).split(b"\n\n")

    answered, failed = sorted(await asyncio.gather(events(1), events(2)), key=lambda told: b"data: [DONE]" not in told)
    assert (answered[0], answered[-2:]) == (b": keep-alive", [b"data: [DONE]", b""])
    assert failed[0] == b": keep-alive"
    assert json.loads(failed[-2].removeprefix(b"data: "))["error"]["code"] == "bad_gateway"


async def test_the_control_port_tells_health_and_figures(
    client: AsyncOpenAI, proxy: Proxy, bench: Bench, http: aiohttp.ClientSession
) -> None:
    await client.chat.completions.create(model="m", messages=HI)
    async with http.get(proxy.control_url + "/healthz") as response:
        assert response.status == 200
    async with http.get(proxy.control_url + "/readyz") as response:
        assert (response.status, await response.json()) == (200, {"ready": True, "reason": None})
    async with http.get(proxy.control_url + "/metrics") as response:
        figures = {
            (sample.name, sample.labels.get("outcome")): sample.value
            for family in text_string_to_metric_families(await response.text())
            for sample in family.samples
        }
    assert figures["polar_proxy_calls_total", "answered"] == 1
    assert figures["polar_proxy_calls_in_flight", None] == 0


async def test_unknown_paths_are_404(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.embeddings.create(model="m", input="x")


async def test_a_body_that_is_too_large_is_413(proxy: Proxy, bench: Bench, http: aiohttp.ClientSession) -> None:
    async def body() -> object:
        for _ in range(65):
            yield b" " * 2**20

    async with post(http, proxy, bench, data=body()) as response:
        assert response.status == 413
        assert (await response.json())["error"]["code"] == "request_too_large"


class PlugIn(VllmChat):
    """An engine that answers the same, whatever it is asked, or has a fault of its own."""

    def __init__(self, outcome: Answer | Exception, delay_s: float = 0.0) -> None:
        super().__init__("http://127.0.0.1:9", "m")
        self.outcome = outcome
        self._delay_s = delay_s

    async def complete(self, request: ChatRequest, session_id: str) -> Answer:
        await asyncio.sleep(self._delay_s)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@asynccontextmanager
async def plugged(bench: Bench, engine: PlugIn) -> AsyncIterator[Proxy]:
    engines = Engines([Replicas("default", {"http://127.0.0.1:9": engine}, model="m", concurrency=1)])
    local = Binding("127.0.0.1", 0)
    proxy = Proxy(bench.settings, engines, [OpenAIChat()], local, local)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop(drain_s=0.0)


async def test_what_an_engine_says_of_its_weights_is_on_the_log_and_what_is_doubted_is_counted(
    bench: Bench, http: aiohttp.ClientSession
) -> None:
    """Whose word stands is in test_policy.py."""
    await bench.fleet(PolicyVersion(7))
    spans = (PolicySpan(8, 0, 1), PolicySpan(9, 1, 2))
    tokens = (b"\1\0\0\0", b"\2\0\0\0" * 2, b"\0" * 8)
    answer = Answer(Message("assistant", "hi"), "stop", Usage(1, 2), *tokens, "m", policy_spans=spans, realigned=5)
    engine = PlugIn(answer)
    async with plugged(bench, engine) as proxy:
        async with post(http, proxy, bench, json={"messages": HI}) as response:
            assert response.status == 200
        engine.outcome = msgspec.structs.replace(answer, policy_spans=spans[:1])
        async with post(http, proxy, bench, json={"messages": HI}) as response:
            assert response.status == 200
        async with http.get(proxy.control_url + "/metrics") as response:
            assert 'polar_proxy_policy_doubts_total{reason="gaps"} 1.0' in await response.text()
    told = [(call.policy_version, call.policy_spans, call.realigned) for call in await bench.calls(2)]
    assert told == [(8, [*spans], 5), (None, [], 5)]


@pytest.mark.parametrize(
    ("outcome", "content", "status", "code"),
    [
        (
            Answer(Message("assistant", "hi"), "stop", Usage(1, 1), b"\1\0\0\0", b"\2\0\0\0", b"\0" * 4, "m"),
            34,
            413,
            "too_large",
        ),
        (KeyError("x"), 1, 503, "proxy_fault"),
        # A connection that the engine lost isn't the harness's: it gets an answer.
        (ConnectionResetError("x"), 1, 503, "proxy_fault"),
    ],
    ids=["too large for the log", "a plug-in's fault", "a connection of the plug-in's"],
)
async def test_a_call_that_the_proxy_fails_is_a_failed_call_too(
    bench: Bench, http: aiohttp.ClientSession, outcome: Answer | Exception, content: int, status: int, code: str
) -> None:
    async with plugged(bench, PlugIn(outcome)) as proxy:
        body = io.BytesIO(msgspec.json.encode({"messages": [{"role": "user", "content": "x" * content * 2**20}]}))
        async with post(http, proxy, bench, data=body) as response:
            assert (response.status, list(await response.json())) == (status, ["error"])
        [call] = await bench.calls(1)
        assert (call.outcome, call.error and call.error.code) == (CallOutcome.FAILED, code)
        assert (call.sampled, call.logprobs, call.answer) == (b"", b"", b"")


async def test_a_fault_of_ours_in_a_stream_that_is_open_is_its_last_event(
    bench: Bench, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.streaming.QUIET_S", 0.1)
    async with plugged(bench, PlugIn(KeyError("x"), delay_s=0.3)) as proxy:
        body = {"messages": HI, "stream": True}
        async with post(http, proxy, bench, json=body) as response:
            *waits, last, end = (await response.read()).split(b"\n\n")
    assert (set(waits), end) == ({b": keep-alive"}, b"")
    assert "the proxy failed" in json.loads(last.removeprefix(b"data: "))["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 400, None),
        (b'Content-Length: 500\r\n\r\n{"messages":', 408, "request_timeout"),
    ],
    ids=["no gzip", "half a body"],
)
async def test_a_body_that_cannot_be_read_is_the_harnesses_error(
    proxy: Proxy, bench: Bench, monkeypatch: pytest.MonkeyPatch, body: bytes, status: int, code: str | None
) -> None:
    monkeypatch.setattr("proxy.bodies.BODY_S", 0.2)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bench.key()}\r\n"
    response = await sent(proxy, head.encode() + body)
    assert response.startswith(b"HTTP/1.1 %d " % status)
    error = json.loads(response.partition(b"\r\n\r\n")[2])["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)


async def sent(proxy: Proxy, request: bytes) -> bytes:
    """What comes back for bytes that no client would send, up to 10 s of it."""
    host, port = proxy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        async with asyncio.timeout(10):
            return await reader.read(65_536)
    finally:
        writer.close()
        await writer.wait_closed()


UNREADABLE = (
    "POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer <key>\x00\r\n\r\n",
    "POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer <key>" + "x" * 200_000 + "\r\n\r\n",
    "BREW /v1/models?key=<key> HTTP/1.1\r\n\r\n",
    "POST *?key=<key> HTTP/1.1\r\n\r\n",
    "CONNECT http://x/v1?key=<key> HTTP/1.1\r\n\r\n",
    "POST /s/<key>/v1/\nmodels HTTP/1.1\r\n\r\n",
    "GET //s/<key>/%0A HTTP/1.1\r\nConnection: close\r\n\r\n",
)


async def test_no_key_is_in_any_log_line_figure_or_error(
    proxy: Proxy,
    bench: Bench,
    scripted: ScriptedEngine,
    http: aiohttp.ClientSession,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs = logging.Formatter()
    good, bad = bench.key(), "sk-polar-" + "x" * 40
    scripted.faults.add(Garbage(form="no_token_ids"))
    told = ""
    for key in [good, good, bad]:
        headers = {"Authorization": f"Bearer {key}"}
        async with http.post(proxy.url + "/v1/chat/completions", headers=headers, json={"messages": HI}) as response:
            told += await response.text()
    async with http.get(proxy.control_url + "/metrics") as response:
        told += await response.text()
    for head in UNREADABLE:
        answer = await sent(proxy, head.replace("<key>", good).encode())
        assert b" 40" in answer[:12]
        told += answer.decode()
    logged = capsys.readouterr()
    told += logged.out + logged.err + "".join(logs.format(record) for record in caplog.records)
    assert "call_failed" in told
    assert "BadHttpMessage" in told
    assert good[-20:] not in told
    assert bad not in told
