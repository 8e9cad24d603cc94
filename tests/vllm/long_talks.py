"""Conversations of many turns in each dialect's own words, over plain HTTP: calls of tools get results, and all else is asked to go on."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.vllm.work import TOOLS, Work, schema

Item = dict[str, Any]
GO_ON = "Look again, please."
MAX_TOKENS = 100
ANSWER_S = 120.0


@dataclass(frozen=True)
class Words:
    """How a dialect says things."""

    variable: str
    """Of the environment: the base of its URLs."""
    path: str
    key: str
    """Of the environment."""
    body: Callable[[list[Item]], Item]
    heard: Callable[[Item], list[Item]]
    """What a harness keeps of an answer."""
    calls: Callable[[list[Item]], list[Item]]
    """Those of what was heard."""
    result: Callable[[Item, Work], Item]
    """A call's, for the conversation."""
    user: Callable[[str], Item]
    is_cut: Callable[[Item], bool]
    """Whether an answer ended at its limit of tokens."""


def talk(env: Mapping[str, str], dialect: str, work: Work, turns: int) -> int:
    """So many answers, each kept as it came; how many they were.

    Fewer where one is cut behind a call of a tool: nothing goes on from those (docs/proxy.md).
    """
    words = WORDS[dialect]
    history = [words.user(work.request)]
    for turn in range(1, turns + 1):
        payload = _told(env[words.variable] + words.path, env[words.key], words.body(history))
        heard = words.heard(payload)
        calls = words.calls(heard)
        if calls and words.is_cut(payload):
            return turn
        history += heard
        history += [words.result(call, work) for call in calls] or [words.user(GO_ON)]
    return turns


def _told(url: str, key: str, body: Item) -> Item:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
        payload: Item = json.load(response)
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
    "openai_chat": Words(
        "OPENAI_BASE_URL",
        "/chat/completions",
        "OPENAI_API_KEY",
        lambda history: {
            "model": "m",
            "max_tokens": MAX_TOKENS,
            "messages": history,
            "tools": [{"type": "function", "function": each} for each in FUNCTIONS],
        },
        lambda payload: [payload["choices"][0]["message"]],
        lambda heard: heard[0].get("tool_calls") or [],
        _chat_result,
        lambda text: {"role": "user", "content": text},
        lambda payload: bool(payload["choices"][0]["finish_reason"] == "length"),
    ),
    "openai_responses": Words(
        "OPENAI_BASE_URL",
        "/responses",
        "OPENAI_API_KEY",
        lambda history: {
            "model": "m",
            "max_output_tokens": MAX_TOKENS,
            "input": history,
            "tools": [{"type": "function", "strict": False} | each for each in FUNCTIONS],
        },
        lambda payload: list(payload["output"]),
        lambda heard: [item for item in heard if item["type"] == "function_call"],
        _responses_result,
        lambda text: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
        lambda payload: bool(payload["status"] == "incomplete"),
    ),
    "anthropic_messages": Words(
        "ANTHROPIC_BASE_URL",
        "/v1/messages",
        "ANTHROPIC_API_KEY",
        lambda history: {
            "model": "m",
            "max_tokens": MAX_TOKENS,
            "messages": history,
            "tools": [{"name": each["name"], "input_schema": each["parameters"]} for each in FUNCTIONS],
        },
        lambda payload: [{"role": "assistant", "content": payload["content"]}],
        lambda heard: [block for block in heard[0]["content"] if block["type"] == "tool_use"],
        _anthropic_result,
        lambda text: {"role": "user", "content": text},
        lambda payload: bool(payload["stop_reason"] == "max_tokens"),
    ),
    "google_generate_content": Words(
        "GOOGLE_GEMINI_BASE_URL",
        "/v1beta/models/m:generateContent",
        "GEMINI_API_KEY",
        lambda history: {
            "contents": history,
            "generationConfig": {"maxOutputTokens": MAX_TOKENS},
            "tools": [
                {
                    "functionDeclarations": [
                        {"name": each["name"], "parametersJsonSchema": each["parameters"]} for each in FUNCTIONS
                    ]
                }
            ],
        },
        lambda payload: [payload["candidates"][0]["content"]],
        lambda heard: [part for part in heard[0].get("parts") or [] if "functionCall" in part],
        _google_result,
        lambda text: {"role": "user", "parts": [{"text": text}]},
        lambda payload: bool(payload["candidates"][0]["finishReason"] == "MAX_TOKENS"),
    ),
}
