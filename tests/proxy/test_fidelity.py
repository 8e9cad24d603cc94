"""Conversations whose turns a harness repeats in its own spelling: the engine reads exactly the tokens that it sampled. Kafka is real."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.scripts import Script, ScriptCall, ScriptTurn, Variant
from proxy.app import Proxy
from proxy.session_key import KEY_HEADER
from tests.proxy.conftest import Bench, proxied
from tests.proxy.talks import DIALECTS
from topics.types.tokens import unpack_ids

ODD = ('{"n" :1.0, "name": "\\u00e9"}', '{ "deep": {"b": [1e2 , true], "a": null} }')
SCRIPT = Script(
    "work",
    "work",
    (
        Variant(
            (
                ScriptTurn(text="I look. ", reasoning=" Hm. ", calls=tuple(ScriptCall("bash", odd) for odd in ODD)),
                ScriptTurn(reasoning="Again.\n", calls=(ScriptCall("bash", ODD[0]),)),
                ScriptTurn(text="Done."),
            )
        ),
    ),
)
BASH = {"name": "bash", "parameters": {"type": "object", "properties": {}}}
Json = dict[str, Any]


def compact(arguments: Any) -> str:
    return json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)


def chat(told: Json) -> list[Json]:
    """Qwen Code: arguments written anew, reasoning trimmed."""
    message = told["choices"][0]["message"]
    calls = message.get("tool_calls") or []
    for call in calls:
        call["function"]["arguments"] = compact(json.loads(call["function"]["arguments"]))
    said = {
        "role": "assistant",
        "content": message["content"] or None,
        "reasoning_content": message.get("reasoning_content", "").strip(),
        "tool_calls": calls,
    }
    return [said, *({"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls)]


def langchain(told: Json) -> list[Json]:
    """LangChain, openai-agents, strands, the AI SDK, `llm`: content and calls alone, since the API has no field for reasoning."""
    said, *results = chat(told)
    del said["reasoning_content"]
    return [said, *results]


def responses(told: Json) -> list[Json]:
    """opencode: arguments written anew, items without their ids."""
    said, results = [], []
    for item in told["output"]:
        if item["type"] == "function_call":
            item["arguments"] = compact(json.loads(item["arguments"]))
            results.append({"type": "function_call_output", "call_id": item["call_id"], "output": "ok"})
        said.append({name: value for name, value in item.items() if name != "id"})
    return said + results


def anthropic(told: Json) -> list[Json]:
    """Claude Code: blocks as they came, through JavaScript."""
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
        for block in told["content"]
        if block["type"] == "tool_use"
    ]
    return [{"role": "assistant", "content": told["content"]}, {"role": "user", "content": results}]


def google(told: Json) -> list[Json]:
    """opencode: calls and their results without ids."""
    parts = told["candidates"][0]["content"]["parts"]
    for part in parts:
        part.get("functionCall", {}).pop("id", None)
    results = [
        {"functionResponse": {"name": part["functionCall"]["name"], "response": {"output": "ok"}}}
        for part in parts
        if "functionCall" in part
    ]
    return [{"role": "model", "parts": parts}, {"role": "user", "parts": results}]


HARNESSES: dict[Callable[[Json], list[Json]], tuple[str, Json]] = {
    chat: ("openai_chat", {}),
    langchain: ("openai_chat", {}),
    responses: ("openai_responses", {"include": ["reasoning.encrypted_content"]}),
    anthropic: ("anthropic_messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    google: ("google_generate_content", {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}),
}
"""How a harness repeats an answer, with the results of its tool calls; its dialect, and what it sends with each request."""


@pytest.fixture
def scripted() -> ScriptedEngine:
    return ScriptedEngine([SCRIPT])


async def turn(http: aiohttp.ClientSession, proxy: Proxy, key: str, harness: Any, turns: list[Json]) -> list[Json]:
    """One request of a conversation; what the harness makes of its answer."""
    dialect, fields = HARNESSES[harness]
    words = DIALECTS[dialect]
    body = words.body(turns) | {"tools": words.tools([BASH])} | fields
    async with http.post(proxy.url + words.path, headers={KEY_HEADER: key}, json=body) as response:
        # As JavaScript reads it: 1.0 is 1.
        told = json.loads(await response.read(), parse_float=lambda digits: int(float(digits)))
        assert response.status == 200, told
    return list(harness(told))


def is_one_trace(scripted: ScriptedEngine, calls: int) -> bool:
    """Whether each prompt begins with the prompt before it and the very tokens that were sampled."""
    books = scripted.record.calls("t.0")
    assert len(books) == calls
    seen = [book.prompt_token_ids + book.token_ids for book in books]
    return all(book.prompt_token_ids[: len(last)] == last for last, book in zip(seen, books[1:], strict=False))


@pytest.mark.parametrize("harness", HARNESSES)
@pytest.mark.parametrize("proxies", [1, 3])
async def test_a_respelled_conversation_is_one_trace_also_where_other_proxies_take_over(
    bench: Bench, engine_url: str, scripted: ScriptedEngine, http: aiohttp.ClientSession, harness: Any, proxies: int
) -> None:
    lies: dict[str, Any] = await bench.open()
    key = bench.key(issued_at=int(time.time()) - 60, **lies)
    turns = [DIALECTS[HARNESSES[harness][0]].user("work")]
    for _ in range(proxies):
        async with proxied(bench, engine_url) as proxy:
            for _ in range(3 // proxies):
                turns += await turn(http, proxy, key, harness, turns)
    assert is_one_trace(scripted, 3)
    calls, books = await bench.calls(3), scripted.record.calls("t.0")
    assert [call.prompt.base for call in calls] == [None, calls[0].call_id, calls[1].call_id]
    assert [call.messages.base for call in calls] == [None, calls[0].call_id, calls[1].call_id]
    assert [call.tools is None for call in calls] == [False, True, True]
    for call, book, last in zip(calls[1:], books[1:], books[:2], strict=True):
        assert call.prompt.shared == len(last.prompt_token_ids) + len(last.token_ids)
        assert unpack_ids(call.prompt.rest).tolist() == book.prompt_token_ids[call.prompt.shared :]
