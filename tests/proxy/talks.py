"""Conversations that only grow, in each dialect's own words, over plain HTTP: what a harness repeats is what it was told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from proxy.session_key import KEY_HEADER

Turn = dict[str, Any]


class Talk:
    """One conversation."""

    def __init__(self, http: aiohttp.ClientSession, key: str, dialect: str) -> None:
        self._http = http
        self._key = key
        self._words = DIALECTS[dialect]
        self.turns: list[Turn] = []
        self.heard: list[str] = []
        """Ids of the answers, as the log has them."""

    async def say(self, url: str, text: str) -> list[Turn]:
        """Says something to the proxy at `url`; the answer's turns, which stand in the conversation from then on."""
        self.turns.append(self._words.user(text))
        headers = {KEY_HEADER: self._key}
        async with self._http.post(
            url + self._words.path, headers=headers, json=self._words.body(self.turns)
        ) as response:
            told = await response.json()
            assert response.status == 200, (response.status, told)
        self.heard.append(told.get("id") or told["responseId"])
        heard = self._words.heard(told)
        self.turns += heard
        return heard


@dataclass(frozen=True)
class Words:
    """How a dialect asks, and what a harness repeats of its answers."""

    path: str
    body: Callable[[list[Turn]], Turn]
    heard: Callable[[Turn], list[Turn]]
    user: Callable[[str], Turn]
    tools: Callable[[list[Turn]], list[Turn]]
    """Functions, given with `name`, `description` and `parameters`, as the body's `tools`."""


DIALECTS = {
    "openai_chat": Words(
        "/v1/chat/completions",
        lambda turns: {"model": "m", "messages": turns},
        lambda told: [told["choices"][0]["message"]],
        lambda text: {"role": "user", "content": text},
        lambda functions: [{"type": "function", "function": each} for each in functions],
    ),
    "openai_responses": Words(
        "/v1/responses",
        lambda turns: {"model": "m", "input": turns},
        lambda told: list(told["output"]),
        lambda text: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
        lambda functions: [{"type": "function", "strict": False} | each for each in functions],
    ),
    "anthropic_messages": Words(
        "/v1/messages",
        lambda turns: {"model": "m", "max_tokens": 1000, "messages": turns},
        lambda told: [{"role": "assistant", "content": told["content"]}],
        lambda text: {"role": "user", "content": text},
        lambda functions: [{"name": each["name"], "input_schema": each["parameters"]} for each in functions],
    ),
    "google_generate_content": Words(
        "/v1beta/models/m:generateContent",
        lambda turns: {"contents": turns},
        lambda told: [told["candidates"][0]["content"]],
        lambda text: {"role": "user", "parts": [{"text": text}]},
        lambda functions: [
            {"functionDeclarations": [{"name": f["name"], "parametersJsonSchema": f["parameters"]} for f in functions]}
        ],
    ),
}
