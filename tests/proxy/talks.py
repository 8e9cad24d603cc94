"""Conversations that only grow, in each dialect's own words, over plain HTTP: what a harness repeats is what it was told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp

from proxy.session_key import KEY_HEADER

Turn = dict[str, Any]


class Talk:
    """One conversation."""

    def __init__(self, http: aiohttp.ClientSession, key: str, dialect: str) -> None:
        self._http = http
        self._key = key
        self._path, self._body, self._heard, self._user = DIALECTS[dialect]
        self.turns: list[Turn] = []
        self.heard: list[str] = []
        """Ids of the answers, as the log has them."""

    async def say(self, url: str, text: str) -> list[Turn]:
        """Says something to the proxy at `url`; the answer's turns, which stand in the conversation from then on."""
        self.turns.append(self._user(text))
        headers = {KEY_HEADER: self._key}
        async with self._http.post(url + self._path, headers=headers, json=self._body(self.turns)) as response:
            told = await response.json()
            assert response.status == 200, (response.status, told)
        self.heard.append(told.get("id") or told["responseId"])
        heard = self._heard(told)
        self.turns += heard
        return heard


Dialect = tuple[str, Callable[[list[Turn]], Turn], Callable[[Turn], list[Turn]], Callable[[str], Turn]]
DIALECTS: dict[str, Dialect] = {
    "openai_chat": (
        "/v1/chat/completions",
        lambda turns: {"model": "m", "messages": turns},
        lambda told: [told["choices"][0]["message"]],
        lambda text: {"role": "user", "content": text},
    ),
    "openai_responses": (
        "/v1/responses",
        lambda turns: {"model": "m", "input": turns},
        lambda told: list(told["output"]),
        lambda text: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
    ),
    "anthropic_messages": (
        "/v1/messages",
        lambda turns: {"model": "m", "max_tokens": 1000, "messages": turns},
        lambda told: [{"role": "assistant", "content": told["content"]}],
        lambda text: {"role": "user", "content": text},
    ),
    "google_generate_content": (
        "/v1beta/models/m:generateContent",
        lambda turns: {"contents": turns},
        lambda told: [told["candidates"][0]["content"]],
        lambda text: {"role": "user", "parts": [{"text": text}]},
    ),
}
