"""What vLLM answers, believed only where every token and logprob is there."""

from __future__ import annotations

import json
import math
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.scripts import Script, ScriptTurn, Variant
from proxy.chat import Answer, ChatRequest, ImagePart, ImageUrl, Message, TextPart, Tool
from proxy.engines.http import fault_of
from proxy.engines.response import BrokenAnswerError, ResponseReader
from proxy.engines.vllm_chat import VllmChat, from_wire, to_wire
from proxy.errors import EngineError
from tests.proxy.engines.recorded import served, started
from topics.types.completion import Sampling
from topics.types.tokens import unpack_ids, unpack_logprobs

GOOD: dict[str, Any] = {
    "id": "x",
    "model": "served",
    "prompt_token_ids": [1, 2, 3],
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "reasoning": "hm", "tool_calls": []},
            "finish_reason": "stop",
            "token_ids": [7, 8],
            "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": 0.0}]},
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 2}},
}


def engine_at(url: str) -> AbstractAsyncContextManager[VllmChat]:
    return started(VllmChat(url, "polar-scripted"))


def told(**changes: Any) -> Answer:
    """The answer read from GOOD, with fields of the body or of its choice replaced."""
    body = dict(GOOD)
    choice = dict(GOOD["choices"][0])
    for name, value in changes.items():
        (choice if name in choice else body)[name] = value
    if "choices" not in changes:
        body["choices"] = [choice]
    return from_wire(json.dumps(body).encode(), "m", "raw")


def entries(*logprobs: float | None) -> dict[str, Any]:
    return {"content": [{"logprob": logprob} for logprob in logprobs]}


def test_a_whole_answer_keeps_its_ids_and_logprobs() -> None:
    answer = told()
    assert unpack_ids(answer.prompt_ids).tolist() == [1, 2, 3]
    assert unpack_ids(answer.sampled_ids).tolist() == [7, 8]
    assert unpack_logprobs(answer.logprobs).tolist() == [-0.5, 0.0]
    assert answer.message == Message("assistant", "hi", reasoning="hm")
    assert (answer.usage.prompt, answer.usage.sampled, answer.usage.cached) == (3, 2, 2)
    assert (answer.model, answer.logprobs_mode, answer.policy_version) == ("served", "raw", None)


@pytest.mark.parametrize(("reason", "sequence"), [("</done>", "</done>"), (151645, None), (None, None)])
def test_a_stop_string_that_ended_the_answer_is_told(reason: str | int | None, sequence: str | None) -> None:
    choice = GOOD["choices"][0] | {"stop_reason": reason}
    assert told(choices=[choice]).stop_sequence == sequence


@pytest.mark.parametrize(
    ("usage", "cached", "reasoning"),
    [
        ({"completion_tokens_details": {"reasoning_tokens": 1}}, None, 1),
        ({"prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": None}, 0, None),
        (None, None, None),
    ],
)
def test_what_the_ids_do_not_count_is_the_engines_word(
    usage: dict[str, Any] | None, cached: int | None, reasoning: int | None
) -> None:
    read = told(usage=usage).usage
    assert (read.prompt, read.sampled, read.cached, read.reasoning) == (3, 2, cached, reasoning)


@pytest.mark.parametrize(
    ("usage", "doubt"),
    [
        ({"prompt_tokens": 3}, None),
        ({"prompt_tokens": 4}, "count"),
        ({"prompt_tokens": 0}, "count"),
        ({}, None),
        (None, None),
    ],
)
def test_a_count_of_another_prompt_is_a_doubt_and_the_answer_stays(
    usage: dict[str, Any] | None, doubt: str | None
) -> None:
    answer = told(usage=usage)
    assert answer.prompt_doubt == doubt
    assert unpack_ids(answer.prompt_ids).tolist() == [1, 2, 3]


def test_a_logprob_may_be_above_zero_by_rounding_alone() -> None:
    assert unpack_logprobs(told(logprobs=entries(1e-6, -1.0)).logprobs)[0] == np.float32(1e-6)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"prompt_token_ids": None}, "no_token_ids"),
        ({"prompt_token_ids": []}, "no_token_ids"),
        ({"token_ids": None}, "no_token_ids"),
        ({"token_ids": [], "logprobs": entries()}, "no_token_ids"),
        ({"token_ids": [1]}, "length_mismatch"),
        ({"logprobs": None}, "length_mismatch"),
        ({"logprobs": {"content": None}}, "length_mismatch"),
        ({"logprobs": entries(-1.0)}, "length_mismatch"),
        ({"logprobs": entries(-1.0, None)}, "bad_logprobs"),
        ({"logprobs": entries(-1.0, math.nan)}, "bad_logprobs"),
        ({"logprobs": entries(-1.0, -math.inf)}, "bad_logprobs"),
        ({"logprobs": entries(-1.0, -9999.0)}, "bad_logprobs"),
        ({"logprobs": entries(-1.0, -1e300)}, "bad_logprobs"),
        ({"logprobs": entries(-1.0, 0.5)}, "bad_logprobs"),
        ({"token_ids": [1, -2]}, "bad_token_ids"),
        ({"prompt_token_ids": [2**31]}, "bad_token_ids"),
        ({"prompt_token_ids": ["1"]}, "malformed"),
        ({"choices": []}, "malformed"),
        ({"choices": [GOOD["choices"][0]] * 2}, "malformed"),
        ({"message": None}, "malformed"),
        ({"finish_reason": "abort"}, "unfinished"),
        ({"finish_reason": None}, "unfinished"),
    ],
)
def test_anything_less_is_a_fault_with_its_reason(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(EngineError) as fault:
        told(**changes)
    assert fault.value.code == code


WHOLE = json.dumps(GOOD).encode()
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b"\xff", b"[]", b"{}", WHOLE[:-9], b'{"choices":NaN}'),
        WHOLE.replace(b'"hi"', b'"\xff"'),
        WHOLE.replace(b'"hi"', b'"\\ud800 is NaN"'),
        WHOLE[:-1] + b',"more":' + DEEP + b"}",
        WHOLE[:-1] + b',"more":NaN,"still":' + DEEP + b"}",
    ],
    ids=range(11),
)
def test_rubbish_is_malformed(body: bytes) -> None:
    with pytest.raises(EngineError) as fault:
        from_wire(body, "m", "raw")
    assert fault.value.code == "malformed"


def test_an_answer_that_is_cut_anywhere_is_malformed() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(EngineError) as fault:
            from_wire(WHOLE[:length], "m", "raw")
        assert fault.value.code == "malformed"


@given(st.integers(0), st.integers(0, 7))
def test_an_answer_with_a_flipped_bit_raises_no_error_but_the_engines(at: int, bit: int) -> None:
    received = bytearray(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(WHOLE), WHOLE))
    received[at % len(received)] ^= 1 << bit
    reader = ResponseReader()
    with suppress(BrokenAnswerError, EngineError):
        response = reader.feed(bytes(received)) or reader.eof()
        if response.status != 200:
            raise fault_of(response.status, None, response.body)
        from_wire(response.body, "m", "raw")


def test_a_call_without_an_id_gets_one() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{ }"}}
    made = told(message={"content": None, "tool_calls": [call]}).message.tool_calls[0]
    assert made.id.startswith("call_")
    assert (made.function.name, made.function.arguments) == ("f", "{ }")


def test_the_request_asks_for_ids_and_logprobs_and_carries_the_sampling() -> None:
    tool = msgspec.json.decode(b'{"function":{"name":"f","parameters":{"b": 1}}}', type=Tool)
    request = ChatRequest(
        [Message("developer", "be brief"), Message("user", "x")],
        model="asked",
        tools=[tool],
        tool_choice="auto",
        sampling=Sampling(temperature=1.0, top_k=-1, max_tokens=9, truncated=True),
        reasoning_effort="minimal",
    )
    wire = to_wire(request, "served", "t.0")
    assert b'"parameters":{"b": 1}' in wire
    assert json.loads(wire) == {
        "model": "served",
        "messages": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"b": 1}}}],
        "tool_choice": "auto",
        "temperature": 1.0,
        "top_k": -1,
        "max_completion_tokens": 9,
        "session_id": "t.0",
        "return_token_ids": True,
        "logprobs": True,
        "top_logprobs": 0,
    }


@pytest.mark.parametrize("body", [b"", b"{}", b'{"prompt": 7}', b"\xff"])
async def test_what_is_no_text_of_tokens_is_malformed(body: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body)

    async with served(answer, lambda url: VllmChat(f"{url}/v1", "polar-scripted")) as engine:
        with pytest.raises(EngineError, match="the answer is no text of tokens"):
            await engine.detokenize([1, 2])


async def test_what_harnesses_ask_for_beyond_the_context_is_cut_to_what_is_left() -> None:
    async with running(ScriptedEngine(max_model_len=200)) as url, engine_at(url) as engine:
        greedy = ChatRequest([Message("user", "hi")], sampling=Sampling(max_tokens=32_000))
        assert (await engine.complete(greedy, "t.0")).finish_reason == "stop"
        for sampling in (Sampling(), Sampling(max_tokens=32_000)):
            with pytest.raises(EngineError) as fault:
                await engine.complete(ChatRequest([Message("user", "word " * 300)], sampling=sampling), "t.0")
            assert fault.value.code == "context_length"
            assert fault.value.context is not None
            assert fault.value.context[0] > 300
            assert fault.value.context[1] == 200


async def test_a_whole_answer_of_reasoning_images_and_a_stop_string_comes_through() -> None:
    said = Script("s", "image", (Variant((ScriptTurn("one two three", "Hm."),)),))
    async with running(ScriptedEngine([said])) as url, engine_at(url) as engine:
        seen = Message("user", [TextPart("see"), ImagePart(ImageUrl("data:image/png;base64,AAAA"))])
        for cached in (0, 16):
            answer = await engine.complete(ChatRequest([seen], stop=["three"]), "t.0")
            assert (answer.message.content, answer.message.reasoning) == ("one two ", "Hm.")
            assert (answer.finish_reason, answer.stop_sequence) == ("stop", "three")
            assert (answer.usage.reasoning, answer.usage.cached) == (3, cached)
