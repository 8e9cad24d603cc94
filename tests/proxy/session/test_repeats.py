"""Requests that repeat one another: which share an answer, which are sampled anew. Engine and Kafka are the real paths' own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Hang, Slow, Status
from proxy.app import Proxy
from proxy.chat import ChatRequest, Function, Message, Tool
from proxy.session.history import transcript
from proxy.session.repeats import content_digest, is_retry
from tests.proxy.conftest import Bench
from tests.waiting import eventually
from topics.calls.delta import Spelled
from topics.completions import Disowned
from topics.types.completion import CallOutcome, Completion, Sampling

Ask = Callable[..., "asyncio.Future[tuple[int, str | None, bytes]]"]


@pytest.fixture
async def ask(proxy: Proxy, bench: Bench, http: aiohttp.ClientSession) -> Ask:
    """Sends a chat request in the background: status, the answer's id, the body."""

    async def asked(retry: str | None, key: str, headers: dict[str, str], body: dict[str, Any]) -> Any:
        sent = {"Authorization": f"Bearer {key}"} | headers
        sent |= {} if retry is None else {"x-stainless-retry-count": retry}
        whole = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | body
        async with http.post(proxy.url + "/v1/chat/completions", headers=sent, json=whole) as response:
            told = await response.read()
            if response.content_type == "text/event-stream":
                first = told.rpartition(b": keep-alive\n\n")[2].split(b"\n\n")[0].removeprefix(b"data: ")
                return response.status, msgspec.json.decode(first).get("id"), told
            return response.status, msgspec.json.decode(told).get("id"), told

    def ask(
        retry: str | None = None, *, key: str | None = None, headers: dict[str, str] | None = None, **body: Any
    ) -> Any:
        return asyncio.ensure_future(asked(retry, key or bench.key(), headers or {}, body))

    return ask


def repeated(proxy: Proxy) -> float:
    families = text_string_to_metric_families(proxy._metrics.text().decode())
    samples = [sample for family in families for sample in family.samples]
    return next(sample.value for sample in samples if sample.name == "polar_proxy_repeated_total")


async def test_a_request_that_comes_while_its_like_is_under_way_joins_it(
    ask: Ask, bench: Bench, proxy: Proxy, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets the form that it asked for."""
    monkeypatch.setattr("proxy.streaming.QUIET_S", 0.2)
    scripted.faults.add(Slow(delay_s=0.7))
    streaming = ask(stream=True, stream_options={"include_usage": True})
    plain, same, stream, retried = await asyncio.gather(ask(), ask(), streaming, ask("1"))
    assert plain[0] == stream[0] == 200
    assert {plain[1], same[1], stream[1], retried[1]} == {plain[1]}
    assert plain[2] == same[2]
    assert stream[2].startswith(b": keep-alive\n\n")
    assert b'"usage":{' in stream[2]
    assert stream[2].endswith(b"data: [DONE]\n\n")
    assert msgspec.json.decode(plain[2])["object"] == "chat.completion"
    assert len(scripted.record.calls("t.0")) == 1
    assert repeated(proxy) == 3
    [call] = await bench.calls(1)
    assert call.call_id == plain[1]


async def test_what_asks_for_something_else_is_a_call_of_its_own(
    ask: Ask, bench: Bench, scripted: ScriptedEngine
) -> None:
    others: list[dict[str, Any]] = [
        {},
        {"seed": 1},
        {"messages": [{"role": "user", "content": "ho"}]},
        {"tools": [{"type": "function", "function": {"name": "bash"}}]},
        {"headers": {"x-session-id": "another"}},
        {"key": bench.key("t.1", "c2")},
    ]
    scripted.faults.add(Slow(delay_s=0.5, times=len(others)))
    told = await asyncio.gather(*(ask(**other) for other in others))
    assert [one[0] for one in told] == [200] * len(others)
    assert len({one[1] for one in told}) == len(others)


async def test_all_choices_are_joined_as_one(ask: Ask, bench: Bench, scripted: ScriptedEngine) -> None:
    scripted.faults.add(Slow(delay_s=0.3, times=2))
    one, two = await asyncio.gather(ask(n=2), ask(n=2))
    assert one == two
    assert len(msgspec.json.decode(one[2])["choices"]) == 2
    assert len(scripted.record.calls("t.0")) == 2
    assert {call.call_id for call in await bench.calls(2)} == {one[1], f"{one[1]}.1"}


async def test_without_a_retry_counter_a_later_request_is_sampled_anew(ask: Ask, scripted: ScriptedEngine) -> None:
    first, second, third = await ask(), await ask("0"), await ask("0")
    assert len({first[1], second[1], third[1]}) == 3
    assert len(scripted.record.calls("t.0")) == 3


async def test_a_retry_gets_the_answer_that_was_given_however_it_asks(ask: Ask, scripted: ScriptedEngine) -> None:
    first, second = await ask("0"), await ask("1")
    assert first == second
    stream = await ask("2", stream=True)
    assert stream[1] == first[1]
    assert stream[2].endswith(b"data: [DONE]\n\n")
    assert len(scripted.record.calls("t.0")) == 1


async def test_a_retry_of_what_failed_is_sampled_anew(
    ask: Ask, bench: Bench, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.engines.retry.PAUSES_S", ())
    given = await ask("0")
    # Of the call, and of the proxy's own request after it.
    scripted.faults.add(Status(status=500, times=2))
    assert (await ask("0"))[0] == 502
    repeated = await ask("1")
    assert repeated[0] == 200
    assert repeated[1] != given[1], "the answer to the request before is not this one's"
    assert [call.outcome for call in await bench.calls(3)] == [
        CallOutcome.ANSWERED,
        CallOutcome.FAILED,
        CallOutcome.ANSWERED,
    ]


async def test_one_that_hangs_up_leaves_the_other_its_answer(
    ask: Ask, bench: Bench, proxy: Proxy, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Slow(delay_s=0.6))
    leaves, stays = ask(), ask()
    await eventually(lambda: repeated(proxy) == 1)
    leaves.cancel()
    assert (await stays)[0] == 200
    [call] = await bench.calls(1)
    assert call.outcome is CallOutcome.ANSWERED


async def test_when_all_have_hung_up_the_call_is_ended_and_a_retry_is_a_new_one(
    ask: Ask, bench: Bench, proxy: Proxy, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Hang())
    both = [ask("0"), ask("1")]
    await eventually(lambda: repeated(proxy) == 1)
    for one in both:
        one.cancel()
    [call] = await bench.calls(1)
    assert (call.outcome, call.error and call.error.code) == (CallOutcome.ABANDONED, "hung_up")
    assert (await ask("2"))[0] == 200


@contextmanager
def losing_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """aiohttp finds the connection gone when it writes the answer to the request that is made here."""

    async def gone(*_: object) -> None:
        raise aiohttp.ClientConnectionResetError

    with monkeypatch.context() as patched:
        patched.setattr(web.Response, "write_eof", gone)
        with pytest.raises(aiohttp.ClientError):
            yield


async def test_an_answer_that_nobody_got_is_disowned_and_not_repeated(
    ask: Ask, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with losing_answers(monkeypatch):
        await ask("0")
    repeated = await ask("1")
    records = await bench.log(lambda found: len(found) == 3)
    first, second = (record for record in records if isinstance(record, Completion))
    [disowned] = (record for record in records if isinstance(record, Disowned))
    assert (disowned.call_id, disowned.reason) == (first.call_id, "hung_up")
    assert repeated[1] == second.call_id != first.call_id


async def test_a_call_names_the_answers_that_its_harness_saw_and_asked_again(ask: Ask, bench: Bench) -> None:
    """Whether they were streamed or not, and at whatever temperature. A retry's client didn't get the answer."""
    first = await ask("0", stream=True)
    second = await ask(temperature=0.5)
    third = await ask("1", temperature=0.7)
    fourth, other = await ask("0"), await ask(headers={"x-session-id": "another"})
    calls = {call.call_id: call.rejects for call in await bench.calls(5)}
    assert calls == {first[1]: [], second[1]: [first[1]], third[1]: [], fourth[1]: [third[1]], other[1]: []}


async def test_all_choices_of_an_answer_are_rejected_by_the_first_of_the_next(ask: Ask, bench: Bench) -> None:
    first, second = await ask(n=2), await ask(n=2)
    both = [first[1], f"{first[1]}.1"]
    calls = {call.call_id: call.rejects for call in await bench.calls(4)}
    assert calls == {first[1]: [], f"{first[1]}.1": [], second[1]: both, f"{second[1]}.1": []}


async def test_an_answer_that_was_under_way_when_the_question_came_again_isn_t_rejected(
    ask: Ask, bench: Bench, proxy: Proxy, scripted: ScriptedEngine
) -> None:
    """As sub-agents without headers that start alike; another seed makes two requests of them."""
    scripted.faults.add(Slow(delay_s=0.5, times=2))
    await asyncio.gather(ask(seed=1), ask(seed=2))
    assert [call.rejects for call in await bench.calls(2)] == [[], []]


async def test_an_answer_that_nobody_got_isn_t_rejected(
    ask: Ask, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with losing_answers(monkeypatch):
        await ask()
    await ask()
    assert [call.rejects for call in await bench.calls(2)] == [[], []]


async def test_only_the_newest_answers_are_kept(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.session.repeats.ANSWERED", 2)
    given = [await ask("0", seed=seed) for seed in range(3)]
    repeated = [await ask("1", seed=seed) for seed in (2, 1, 0)]
    assert [one[1] == two[1] for one, two in zip(given, reversed(repeated), strict=True)] == [False, True, True]


async def test_the_log_says_how_often_a_client_tried(ask: Ask, bench: Bench) -> None:
    await ask("3")
    [call] = await bench.calls(1)
    assert call.lineage == {"retry": "3"}


def test_a_name_stands_for_all_that_an_answer_depends_on() -> None:
    asked = ChatRequest([Message("user", "hi")], "m", sampling=Sampling(temperature=1))

    def named(request: ChatRequest, lineage: dict[str, str] | None = None, dialect: str = "openai_chat") -> bytes:
        return content_digest(dialect, request, transcript(Spelled(request.messages), request.tools), lineage)

    def other(**fields: Any) -> ChatRequest:
        return msgspec.structs.replace(asked, **fields)

    alike = [asked, other(stream=True), other(stream_usage=True), other(wire=object())]
    assert len({named(request) for request in alike}) == 1
    assert named(asked, {"retry": "1"}) == named(asked, {"retry": "0"}) == named(asked)
    assert named(asked, {"thread": "a", "retry": "1"}) == named(asked, {"thread": "a"})
    different = [
        named(asked),
        named(asked, dialect="openai_responses"),
        named(asked, {"thread": "a"}),
        named(asked, {"thread": "b"}),
        named(other(messages=[Message("user", "ho")])),
        named(other(messages=[Message("user", "hi"), Message("user", "hi")])),
        named(other(tools=[Tool(Function("bash"))])),
        named(other(model="n")),
        named(other(sampling=Sampling(temperature=1, seed=2))),
        named(other(choices=2)),
        named(other(stop=["x"])),
        named(other(tool_choice="required")),
        named(other(response_format=msgspec.Raw(b"{}"))),
        named(other(reasoning_effort="low")),
        named(other(store=True)),
    ]
    assert len(set(different)) == len(different)


@pytest.mark.parametrize(("counter", "told"), [(None, False), ("0", False), ("00", False), ("1", True), ("x", True)])
def test_a_counter_above_nought_is_a_retry(counter: str | None, told: bool) -> None:
    assert is_retry(None if counter is None else {"retry": counter}) == told
