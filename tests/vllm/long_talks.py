"""Conversations of many turns in each dialect's own words, over plain HTTP: calls of tools get results, and all else is asked to go on."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.proxy.talks import DIALECTS
from tests.vllm.work import TOOLS, Work, schema

Item = dict[str, Any]
GO_ON = "Look again, please."
MAX_TOKENS = 100
ANSWER_S = 120.0


@dataclass(frozen=True)
class Tooling:
    """How a dialect limits answers and calls tools; the rest is `tests/proxy/talks.py`'s."""

    provider: str
    """Of the environment: the prefix of the base of its URLs and of its key."""
    limit: Item
    calls: Callable[[list[Item]], list[Item]]
    """Those of what was heard."""
    result: Callable[[Item, Work], Item]
    """A call's, for the conversation."""
    is_cut: Callable[[Item], bool]
    """Whether an answer ended at its limit of tokens."""


def talk(env: Mapping[str, str], dialect: str, work: Work, turns: int) -> int:
    """So many answers, each kept as it came; how many they were.

    Fewer where one is cut behind a call of a tool: nothing goes on from those (docs/proxy.md).
    """
    words, tooling = DIALECTS[dialect], WORDS[dialect]
    url = env[f"{tooling.provider.replace('GEMINI', 'GOOGLE_GEMINI')}_BASE_URL"].removesuffix("/v1") + words.path
    fields = {"tools": words.tools(FUNCTIONS)} | tooling.limit
    history = [words.user(work.request)]
    for turn in range(1, turns + 1):
        payload = _told(url, env[f"{tooling.provider}_API_KEY"], words.body(history) | fields)
        heard = words.heard(payload)
        calls = tooling.calls(heard)
        if calls and tooling.is_cut(payload):
            return turn
        history += heard
        history += [tooling.result(call, work) for call in calls] or [words.user(GO_ON)]
    return turns


def _told(url: str, key: str, body: Item) -> Item:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
            payload: Item = json.load(response)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url} answers {error.code}: {error.read().decode()}, after {body}") from None
    return payload


def _chat_result(call: Item, work: Work) -> Item:
    payload = work.answer(call["function"]["name"], _arguments(call["function"]["arguments"]))
    return {"role": "tool", "tool_call_id": call["id"], "content": payload}


def _responses_result(call: Item, work: Work) -> Item:
    payload = work.answer(call["name"], _arguments(call["arguments"]))
    return {"type": "function_call_output", "call_id": call["call_id"], "output": payload}


def _anthropic_result(call: Item, work: Work) -> Item:
    block = {"type": "tool_result", "tool_use_id": call["id"], "content": work.answer(call["name"], call["input"])}
    return {"role": "user", "content": [block]}


def _google_result(call: Item, work: Work) -> Item:
    called = call["functionCall"]
    response = {"output": work.answer(called["name"], called.get("args") or {})}
    return {"role": "user", "parts": [{"functionResponse": {"name": called["name"], "response": response}}]}


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}


FUNCTIONS = [{"name": name, "parameters": schema(parameters)} for name, parameters in TOOLS.items()]
WORDS = {
    "openai_chat": Tooling(
        "OPENAI",
        {"max_tokens": MAX_TOKENS},
        lambda heard: heard[0].get("tool_calls") or [],
        _chat_result,
        lambda payload: bool(payload["choices"][0]["finish_reason"] == "length"),
    ),
    "openai_responses": Tooling(
        "OPENAI",
        {"max_output_tokens": MAX_TOKENS},
        lambda heard: [item for item in heard if item["type"] == "function_call"],
        _responses_result,
        lambda payload: bool(payload["status"] == "incomplete"),
    ),
    "anthropic_messages": Tooling(
        "ANTHROPIC",
        {"max_tokens": MAX_TOKENS},
        lambda heard: [block for block in heard[0]["content"] if block["type"] == "tool_use"],
        _anthropic_result,
        lambda payload: bool(payload["stop_reason"] == "max_tokens"),
    ),
    "google_generate_content": Tooling(
        "GEMINI",
        {"generationConfig": {"maxOutputTokens": MAX_TOKENS}},
        lambda heard: [part for part in heard[0].get("parts") or [] if "functionCall" in part],
        _google_result,
        lambda payload: bool(payload["candidates"][0]["finishReason"] == "MAX_TOKENS"),
    ),
}
