"""What vLLM's generate answers, believed only where every token and logprob is there; the server is a stand-in that is told what to say."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from proxy.chat import (
    Answer,
    AudioPart,
    AudioUrl,
    ChatRequest,
    Function,
    ImagePart,
    ImageUrl,
    Message,
    Part,
    TextPart,
    Tool,
)
from proxy.engines.vllm_tokens import DERENDER, GENERATE, RENDER, VllmTokens
from proxy.errors import EngineError, Refusal, refusal_of
from tests.proxy.engines.recorded import served
from topics.types.completion import PolicySpan, Sampling
from topics.types.tokens import unpack_ids, unpack_logprobs

RENDERED: dict[str, Any] = {
    "request_id": "r",
    "token_ids": [1, 2, 3],
    "sampling_params": {"max_tokens": 97, "temperature": 0.5, "stop_token_ids": [7], "logprobs": None},
    "model": "served",
    "features": None,
    "reasoning_ended": True,
    "stream": False,
}
CHOICE: dict[str, Any] = {
    "index": 0,
    "token_ids": [5, 6, 7],
    "finish_reason": "stop",
    "stop_reason": None,
    "logprobs": {"content": [{"token_id": n, "logprob": -0.5, "rank": 1, "top_logprobs": []} for n in (5, 6, 7)]},
    "weight_versions": None,
}
GENERATED: dict[str, Any] = {
    "request_id": "r",
    "model": "served",
    "usage": {"prompt_tokens": 3, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
    "choices": [CHOICE],
}
SAID: dict[str, Any] = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi", "tool_calls": []}}]}

NO_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
FREE, STRICT = Tool(Function("look")), Tool(Function("look", strict=True))


class Server:
    """Answers each route with what it is given, and keeps what it was asked."""

    def __init__(self, **told: Any) -> None:
        self.told = {RENDER: RENDERED, GENERATE: GENERATED, DERENDER: SAID} | told
        self.asked: dict[str, dict[str, Any]] = {}
        self.sessions: list[str | None] = []
        self.delay_s = 0.0
        self.failures: list[int] = []
        """Statuses of derendering, the last first."""
        self.counts: Counter[str] = Counter()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked[request.path] = msgspec.json.decode(await request.read())
        self.sessions.append(request.headers.get("X-Session-ID"))
        await asyncio.sleep(self.delay_s)
        self.counts[request.path] += 1
        if request.path == DERENDER and self.failures:
            return web.Response(status=self.failures.pop(), body=b'{"message": "no"}')
        return web.Response(body=msgspec.json.encode(self.told[request.path]), content_type="application/json")


def engine_of(server: Server, **options: Any) -> AbstractAsyncContextManager[VllmTokens]:
    return served(server.answer, lambda url: VllmTokens(url, "m", logprobs_mode="processed", **options))


async def answer_of(server: Server, **fields: Any) -> Answer:
    async with engine_of(server) as engine:
        return await engine.complete(ChatRequest([Message("user", "hi")], **fields), "t.0")


def generated(**changes: Any) -> dict[str, Any]:
    return {GENERATE: GENERATED | {"choices": [CHOICE | changes]}}


async def test_the_answer_is_of_the_tokens_that_were_asked_for_and_sampled() -> None:
    server = Server()
    answer = await answer_of(server, sampling=Sampling(max_tokens=40), salt=lambda: "policy-3-9")
    assert unpack_ids(answer.prompt_ids).tolist() == [1, 2, 3]
    assert unpack_ids(answer.sampled_ids).tolist() == [5, 6, 7]
    assert unpack_logprobs(answer.logprobs).tolist() == [-0.5] * 3
    assert (answer.message, answer.finish_reason) == (Message("assistant", "hi"), "stop")
    assert (answer.usage.prompt, answer.usage.sampled, answer.usage.cached) == (3, 3, 2)
    assert (answer.model, answer.logprobs_mode, answer.realigned) == ("served", "processed", 0)


async def test_what_the_server_rendered_goes_back_to_it_but_for_what_is_ours() -> None:
    server = Server()
    await answer_of(server, sampling=Sampling(max_tokens=40), salt=lambda: "policy-3-9")
    assert "max_completion_tokens" not in server.asked[RENDER]
    assert server.asked[RENDER]["cache_salt"] == "policy-3-9"
    asked = server.asked[GENERATE]
    assert (asked["token_ids"], asked["reasoning_ended"], asked["stream"]) == ([1, 2, 3], True, False)
    assert asked["return_token_ids"] is True
    params = {"max_tokens": 40, "temperature": 0.5, "stop_token_ids": [7], "logprobs": 0, "n": 1}
    assert asked["sampling_params"] == params
    assert server.sessions == [None, "t.0", None]
    response = server.asked[DERENDER]["generate_response"]
    assert response["prompt_token_ids"] == [1, 2, 3]
    assert response["choices"][0]["token_ids"] == [5, 6], "the end of the turn would be text"


async def test_the_places_of_media_are_the_rendering_s_and_its_features_go_back_unchanged() -> None:
    places = {"image": [{"offset": 1, "length": 2}, {"offset": 3, "length": 2}], "audio": [{"offset": 6, "length": 1}]}
    features = {
        "mm_hashes": {"image": ["a", "b"], "audio": ["c"]},
        "mm_placeholders": places,
        "kwargs_data": {"image": ["gAB=", None], "audio": [None]},
        "mm_metadata": None,
    }
    picture, sound = ImagePart(ImageUrl("data:image/png;base64,")), AudioPart(AudioUrl("data:audio/wav;base64,"))
    server = Server(**{RENDER: RENDERED | {"features": features}})
    async with engine_of(server) as engine:
        talks: list[tuple[list[Part], tuple[int, ...] | None]] = [
            ([picture, sound, picture], (1, 6, 3)),
            ([picture, sound], None),
            ([], None),
        ]
        for parts, expected in talks:
            answer = await engine.complete(ChatRequest([Message("user", [TextPart("hi"), *parts])]), "t.0")
            assert answer.media_positions == expected
            assert server.asked[GENERATE]["features"] == features
    assert (await answer_of(Server())).media_positions is None


async def test_the_record_has_what_the_server_samples_with_and_not_what_was_left_open() -> None:
    params = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05, "logit_bias": {"5": 1.0}}
    asked = Sampling(top_p=0.9, max_tokens=40, stop=["END"])
    answer = await answer_of(Server(**{RENDER: RENDERED | {"sampling_params": params}}), sampling=asked)
    assert answer.sampling == Sampling(
        temperature=0.6,
        top_p=1.0,
        top_k=20,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.05,
        max_tokens=40,
        truncated=True,
        grammar_source="none",
        stop=["END"],
        logit_bias={"5": 1.0},
    )


@pytest.mark.parametrize(
    ("params", "fields", "grammar", "source"),
    [
        ({}, {}, False, "none"),
        ({"structured_outputs": None}, {"tools": [STRICT]}, False, "none"),
        ({"structured_outputs": {"structural_tag": "{}"}}, {"tools": [STRICT]}, True, "strict_tools"),
        ({"structured_outputs": {"structural_tag": "{}"}}, {"tools": [FREE]}, True, "engine"),
        ({"structured_outputs": {"grammar": "…"}}, {}, True, "engine"),
    ],
)
async def test_a_grammar_is_what_the_server_rendered_whatever_the_request_asked_for(
    params: dict[str, Any], fields: dict[str, Any], grammar: bool, source: str
) -> None:
    answer = await answer_of(Server(**{RENDER: RENDERED | {"sampling_params": params}}), **fields)
    assert answer.sampling is not None
    assert (answer.sampling.grammar, answer.sampling.grammar_source) == (grammar, source)


@pytest.mark.parametrize(
    ("params", "known"),
    [
        ({"top_p": "much"}, {"top_k": 0, "min_p": 0.0, **NO_PENALTIES}),
        ({"top_k": 20.0}, {"top_p": 1.0, "min_p": 0.0, **NO_PENALTIES}),
        ({"top_k": 20.0, "top_p": 0.9}, {"top_p": 0.9, "min_p": 0.0, "truncated": True, **NO_PENALTIES}),
        ({"repetition_penalty": [1]}, {"top_p": 1.0, "top_k": 0, "min_p": 0.0, **NO_PENALTIES, "repetition_penalty": None}),
        ({"logit_bias": {"5": "up"}}, {"top_p": 1.0, "top_k": 0, "min_p": 0.0}),
        ({"logit_bias": [1]}, {"top_p": 1.0, "top_k": 0, "min_p": 0.0}),
    ],
    ids=str,
)  # fmt: skip
async def test_a_setting_of_another_form_is_unknown_and_costs_no_answer(
    params: dict[str, Any], known: dict[str, Any]
) -> None:
    """What the request has in its place isn't recorded: the server may sample by its own. Unreadable biases may be penalties."""
    asked = Sampling(temperature=0.6, top_p=0.5, top_k=7, repetition_penalty=1.2, seed=3, max_tokens=40, stop=["END"])
    rendering = RENDERED | {"sampling_params": {"temperature": 0.6} | params}
    answer = await answer_of(Server(**{RENDER: rendering}), sampling=asked)
    ours = Sampling(temperature=0.6, seed=3, max_tokens=40, stop=["END"], grammar_source="none")
    assert answer.sampling == msgspec.structs.replace(ours, **known)
    assert not answer.sampling.plain
    assert unpack_ids(answer.sampled_ids).tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    "features",
    [{"mm_placeholders": {"image": [[4, 16]]}}, {"mm_placeholders": None}, {"mm_placeholders": 3}, []],
    ids=str,
)
async def test_places_of_another_form_are_unknown_and_cost_no_answer(features: Any) -> None:
    server = Server(**{RENDER: RENDERED | {"features": features}})
    picture = ImagePart(ImageUrl("data:image/png;base64,"))
    async with engine_of(server) as engine:
        answer = await engine.complete(ChatRequest([Message("user", [picture])]), "t.0")
    assert answer.media_positions is None
    assert server.asked[GENERATE]["features"] == features


async def test_a_server_that_renders_no_settings_leaves_them_as_asked() -> None:
    answer = await answer_of(Server(**{RENDER: RENDERED | {"sampling_params": None}}))
    assert answer.sampling is None


LONG = list(range(2000))
"""Ids that `lift` cuts out of the JSON."""


@pytest.mark.parametrize(
    ("sent", "reported", "counted", "doubt"),
    [
        ([1, 2, 3], [1, 2, 3], 3, None),
        ([1, 2, 3], None, 3, None),
        ([1, 2, 3], None, None, None),
        ([1, 2, 3], [1, 9, 3], 3, "ids"),
        ([1, 2, 3], [1, 2], 2, "ids"),
        ([1, 2, 3], None, 4, "count"),
        (LONG, LONG, len(LONG), None),
        (LONG, [*LONG[:-1], 7], len(LONG), "ids"),
        ([1, 2, 3], [1, 2, -3], 3, "ids"),
        ([1, 2, 3], [1, 2, 2**40], 3, "ids"),
        ([1, 2, 3], [1, 2, "3"], 3, "ids"),
        ([1, 2, 3], "123", 3, "ids"),
        ([1, 2, 3], [], 3, None),
    ],
    ids=str,
)
async def test_what_the_server_says_that_it_read_is_compared_with_what_was_sent(
    sent: list[int], reported: Any, counted: int | None, doubt: str | None
) -> None:
    generated = GENERATED | {"prompt_token_ids": reported, "usage": {"prompt_tokens": counted}}
    answer = await answer_of(Server(**{RENDER: RENDERED | {"token_ids": sent}, GENERATE: generated}))
    assert answer.prompt_doubt == doubt
    assert unpack_ids(answer.prompt_ids).tolist() == sent
    assert unpack_ids(answer.sampled_ids).tolist() == [5, 6, 7]


async def test_ids_of_calls_that_the_server_only_drew_are_such_as_every_template_takes() -> None:
    """Mistral's refuse all but nine letters and digits; an id of the model's own says something to its template."""
    drawn = ["00000000000000ff", "5f3c0f6c8f0d4c8e9a3b0c1d2e3f4a5b"]
    calls = [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for name in [*drawn, "functions.look:2"]
    ]
    said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": calls}}]}
    answer = await answer_of(Server(**{DERENDER: said}))
    *ours, own = [call.id for call in answer.message.tool_calls]
    assert own == "functions.look:2"
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", one) for one in ours)
    assert len(set(ours)) == len(drawn)


@pytest.mark.parametrize(("wanted", "told"), [(None, None), (40, 40), (32_000, 97)])
async def test_a_limit_is_the_harness_s_or_what_the_context_leaves(wanted: int | None, told: int | None) -> None:
    server = Server()
    await answer_of(server, sampling=Sampling(max_tokens=wanted))
    assert server.asked[GENERATE]["sampling_params"].get("max_tokens") == told


@pytest.mark.parametrize(
    ("changes", "parsed", "message"),
    [
        ({"finish_reason": "length"}, [5, 6, 7], Message("assistant", "hi")),
        ({"stop_reason": 7}, [5, 6], Message("assistant", "hi")),
        ({"stop_reason": "i"}, [5, 6, 7], Message("assistant", "h")),
    ],
    ids=["cut off", "its own end", "stop string"],
)
async def test_what_is_parsed_is_what_was_said(changes: dict[str, Any], parsed: list[int], message: Message) -> None:
    server = Server(**generated(**changes))
    answer = await answer_of(server)
    assert answer.message == message
    assert server.asked[DERENDER]["generate_response"]["choices"][0]["token_ids"] == parsed


async def test_an_answer_that_only_ends_its_turn_is_empty_and_parsed_by_nobody() -> None:
    entries = {"content": CHOICE["logprobs"]["content"][2:]}
    server = Server(**generated(token_ids=[7], logprobs=entries))
    assert (await answer_of(server)).message == Message("assistant", "")
    assert DERENDER not in server.asked


async def test_spans_of_weights_are_told() -> None:
    spans = [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}]
    answer = await answer_of(Server(**generated(weight_versions=spans)))
    assert answer.policy_version == 3
    assert answer.policy_spans == (PolicySpan(3, 0, 2), PolicySpan(4, 2, 3))


async def test_a_prompt_with_images_stands_as_the_server_rendered_it() -> None:
    features = {"mm_hashes": {"image": ["x"]}, "mm_placeholders": {"image": [{"offset": 1, "length": 1}]}}
    server = Server(**{RENDER: RENDERED | {"features": features}})
    assert (await answer_of(server)).realigned == 0
    assert server.asked[GENERATE]["features"] == features


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({RENDER: RENDERED | {"token_ids": []}}, "no_token_ids"),
        ({RENDER: [1]}, "malformed"),
        ({GENERATE: GENERATED | {"choices": []}}, "malformed"),
        (generated(finish_reason="abort"), "unfinished"),
        (generated(token_ids=None), "no_token_ids"),
        (generated(token_ids=[5, 6, -1]), "bad_token_ids"),
        (generated(logprobs=None), "length_mismatch"),
        (generated(token_ids=[5, 6, 8]), "bad_logprobs"),
        (generated(logprobs={"content": [{"token_id": n, "logprob": -9999.0} for n in (5, 6, 7)]}), "bad_logprobs"),
        ({DERENDER: {"choices": []}}, "malformed"),
    ],
)
async def test_half_an_answer_is_none(told: dict[str, Any], code: str) -> None:
    with pytest.raises(EngineError) as fault:
        await answer_of(Server(**told))
    assert fault.value.code == code


async def test_one_deadline_is_for_all_requests_of_a_call() -> None:
    server = Server()
    server.delay_s = 0.5
    async with engine_of(server, deadline_s=0.8) as engine:
        with pytest.raises(EngineError) as fault:
            await engine.complete(ChatRequest([Message("user", "hi")]), "t.0")
    assert (fault.value.code, fault.value.retryable) == ("timeout", False)
    assert DERENDER not in server.asked


async def test_an_answer_that_is_not_parsed_at_once_is_not_sampled_anew() -> None:
    server = Server()
    server.failures = [500]
    assert (await answer_of(server)).message == Message("assistant", "hi")
    assert (server.counts[GENERATE], server.counts[DERENDER]) == (1, 2)


@pytest.mark.parametrize("status", [400, 422, 500])
async def test_an_answer_that_is_not_parsed_is_no_fault_of_the_harness(status: int) -> None:
    server = Server()
    server.failures = [status] * 3
    with pytest.raises(EngineError) as fault:
        await answer_of(server)
    assert (fault.value.code, fault.value.status, fault.value.retryable) == ("unparsed", status, False)
    assert refusal_of(fault.value).refusal is Refusal.BAD_ENGINE
    assert server.counts[GENERATE] == 1


async def test_the_salt_is_that_of_the_weights_when_it_is_sampled() -> None:
    server = Server()
    await answer_of(server, salt=lambda: "policy-4-12" if RENDER in server.asked else "policy-3-9")
    assert server.asked[GENERATE]["cache_salt"] == "policy-4-12"
