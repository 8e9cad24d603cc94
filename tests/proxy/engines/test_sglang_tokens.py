"""SGLang by tokens, on answers of the shapes that its sources tell; the server is a stand-in, and no live one has been asked yet."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

from proxy.chat import Answer, ChatRequest, ImagePart, ImageUrl, Message, Part, RepeatedAnswer, TextPart
from proxy.engines.sglang_tokens import SglangTokens
from proxy.errors import EngineError
from tests.proxy.engines.recorded import served
from topics.types.completion import PolicySpan, Sampling
from topics.types.tokens import unpack_ids, unpack_logprobs

BEGIN, END = 1, 2


class Server:
    """Renders turns as their characters between a begin and an end, and answers "ok"; earlier answers it writes in capitals."""

    def __init__(self, *, context: int = 1000, reads_ids: bool = True, **meta: Any) -> None:
        self.reads_ids = reads_ids
        self.meta = meta
        self.context = context
        self.asked: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read())
        self.asked.append(asked)
        wanted = asked.get("max_completion_tokens", 0)
        if wanted > self.context:
            told = f"Requested token count exceeds the model's maximum context length of {self.context} tokens."
            return web.Response(status=400, body=msgspec.json.encode({"message": told}))
        meta = {"output_token_logprobs": [[-0.25, 111, None], [-0.5, 107, None], [-0.125, END, None]]} | self.meta
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "ok", "reasoning_content": None, "tool_calls": None},
            "finish_reason": "stop",
            "matched_stop": END,
            "prompt_token_ids": asked.get("input_ids", []) * self.reads_ids or rendered(asked["messages"]),
            "meta_info": meta,
        }
        body = {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def rendered(messages: list[dict[str, Any]]) -> list[int]:
    ids = []
    for message in messages:
        text = message["content"]
        text = "".join(part.get("text", "I") for part in text) if isinstance(text, list) else text
        text = text.upper() if message["role"] == "assistant" else text
        ids += [BEGIN, *map(ord, text), END]
    return [*ids, BEGIN]


def engine_of(server: Server) -> AbstractAsyncContextManager[SglangTokens]:
    return served(server.answer, lambda url: SglangTokens(url, "m", logprobs_mode="processed"))


async def answer_of(server: Server, request: ChatRequest) -> Answer:
    async with engine_of(server) as engine:
        return await engine.complete(request, "t.0")


HI = ChatRequest([Message("user", "hi")], sampling=Sampling(max_tokens=9), salt=lambda: "policy-1-2")


async def test_a_first_call_is_one_request_whose_prompt_the_server_tells() -> None:
    server = Server(cached_tokens=2)
    answer = await answer_of(server, HI)
    assert unpack_ids(answer.prompt_ids).tolist() == [BEGIN, *map(ord, "hi"), END, BEGIN]
    assert unpack_ids(answer.sampled_ids).tolist() == [111, 107, END]
    assert unpack_logprobs(answer.logprobs).tolist() == [-0.25, -0.5, -0.125]
    assert (answer.message, answer.finish_reason) == (Message("assistant", "ok"), "stop")
    assert (answer.usage.cached, answer.stop_sequence, answer.logprobs_mode) == (2, None, "processed")
    [asked] = server.asked
    assert (asked["return_meta_info"], asked["return_prompt_token_ids"]) == (True, True)
    assert (asked["logprobs"], asked["max_completion_tokens"], asked["extra_key"]) == (True, 9, "policy-1-2")
    assert not {"input_ids", "return_token_ids", "session_id", "top_logprobs", "cache_salt"} & asked.keys()


async def test_the_next_call_goes_on_from_the_tokens() -> None:
    server = Server()
    async with engine_of(server) as engine:
        before = await engine.complete(HI, "t.0")
        tokens = np.concatenate((unpack_ids(before.prompt_ids), unpack_ids(before.sampled_ids)))
        said = [*HI.messages, before.message, Message("user", "on")]
        after = await engine.complete(ChatRequest(said, continued=RepeatedAnswer(1, tokens, True)), "t.0")
    expected = [*tokens.tolist(), BEGIN, *map(ord, "on"), END, BEGIN]
    assert unpack_ids(after.prompt_ids).tolist() == expected
    assert server.asked[-1]["input_ids"] == expected
    assert after.realigned == 2
    assert all(asked["max_completion_tokens"] == 1 for asked in server.asked[1:-1])


async def test_a_server_that_ignores_the_ids_is_recorded_with_what_it_read_and_doubted() -> None:
    server = Server(reads_ids=False)
    async with engine_of(server) as engine:
        before = await engine.complete(HI, "t.0")
        tokens = np.concatenate((unpack_ids(before.prompt_ids), unpack_ids(before.sampled_ids)))
        said = [*HI.messages, before.message, Message("user", "on")]
        after = await engine.complete(ChatRequest(said, continued=RepeatedAnswer(1, tokens, True)), "t.0")
    assert before.prompt_doubt is None
    assert (after.prompt_doubt, after.realigned) == ("ids", 0)
    assert unpack_ids(after.prompt_ids).tolist() == rendered(server.asked[-1]["messages"])


@pytest.mark.parametrize(("prompt_tokens", "doubt"), [(5, None), (6, "count"), (None, None)])
async def test_the_ids_and_the_count_of_the_prompt_must_agree(prompt_tokens: int | None, doubt: str | None) -> None:
    answer = await answer_of(Server(prompt_tokens=prompt_tokens), HI)
    assert (len(unpack_ids(answer.prompt_ids)), answer.prompt_doubt) == (5, doubt)


async def test_a_limit_beyond_the_context_is_left_out() -> None:
    server = Server(context=100)
    await answer_of(server, msgspec.structs.replace(HI, sampling=Sampling(max_tokens=32_000)))
    assert [asked.get("max_completion_tokens") for asked in server.asked] == [32_000, None]


async def test_a_prompt_with_images_is_the_servers_own() -> None:
    seen: list[Part] = [TextPart("see"), ImagePart(ImageUrl("data:image/png;base64,AAAA"))]
    said = [Message("user", seen), Message("assistant", "ok"), Message("user", "on")]
    tokens = np.array([BEGIN, 5, END, BEGIN, 111, 107, END], np.int32)
    server = Server()
    answer = await answer_of(server, ChatRequest(said, continued=RepeatedAnswer(1, tokens, True)))
    [asked] = server.asked
    assert "input_ids" not in asked
    assert answer.realigned == 0


async def test_versions_are_of_spans_or_of_the_whole_answer() -> None:
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 3}]
    answer = await answer_of(Server(weight_versions=spans, weight_version="4"), HI)
    assert answer.policy_spans == (PolicySpan(3, 0, 1), PolicySpan(4, 1, 3))
    assert answer.policy_doubt is None
    answer = await answer_of(Server(weight_version="4"), HI)
    assert (answer.policy_version, answer.policy_spans, answer.policy_doubt) == (4, (), "late")
    answer = await answer_of(Server(weight_version="default"), HI)
    assert (answer.policy_version, answer.policy_doubt) == (None, "not_ours")


async def test_an_answer_without_its_tokens_is_none() -> None:
    with pytest.raises(EngineError, match="output_token_logprobs"):
        await answer_of(Server(output_token_logprobs=None), HI)
    with pytest.raises(EngineError, match="logprob"):
        await answer_of(Server(output_token_logprobs=[[None, 5, None]]), HI)
