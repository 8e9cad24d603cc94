"""What benchmarks ask a model: conversations in each provider's wire format, each with a number that makes it like no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from benchmarks.stub_engine import MODEL, answer_text

QUESTION_CHARS = 900
NUMBER = "00000000"
"""Where each conversation's own number stands, in the first question."""

Turns = list[tuple[str, str]]
"""(role, text), `user` and `assistant` in turn."""


@dataclass(frozen=True)
class Form:
    """How one provider's client asks."""

    name: str
    """The dialect's."""
    path: str
    stream_path: str
    key_header: str
    body: Callable[[Turns, int, bool], dict[str, Any]]
    key_prefix: str = ""
    headers: Mapping[str, str] | None = None


def _chat(turns: Turns, tokens: int, stream: bool) -> dict[str, Any]:
    messages = [{"role": role, "content": text} for role, text in turns]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "stream": stream}


def _responses(turns: Turns, tokens: int, stream: bool) -> dict[str, Any]:
    kinds = {"user": "input_text", "assistant": "output_text"}
    items = [
        {"type": "message", "role": role, "content": [{"type": kinds[role], "text": text}]} for role, text in turns
    ]
    return {"model": MODEL, "input": items, "max_output_tokens": tokens, "stream": stream, "store": False}


def _messages(turns: Turns, tokens: int, stream: bool) -> dict[str, Any]:
    messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
    return {"model": MODEL, "max_tokens": tokens, "messages": messages, "stream": stream}


def _contents(turns: Turns, tokens: int, _: bool) -> dict[str, Any]:
    roles = {"user": "user", "assistant": "model"}
    contents = [{"role": roles[role], "parts": [{"text": text}]} for role, text in turns]
    return {"contents": contents, "generationConfig": {"maxOutputTokens": tokens}}


CHAT = Form("openai_chat", "/v1/chat/completions", "/v1/chat/completions", "Authorization", _chat, "Bearer ")
FORMS = (
    CHAT,
    Form("openai_responses", "/v1/responses", "/v1/responses", "Authorization", _responses, "Bearer "),
    Form(
        "anthropic_messages",
        "/v1/messages",
        "/v1/messages",
        "x-api-key",
        _messages,
        headers={"anthropic-version": "2023-06-01"},
    ),
    Form(
        "google_generate_content",
        f"/v1beta/models/{MODEL}:generateContent",
        f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse",
        "x-goog-api-key",
        _contents,
    ),
)


@dataclass(frozen=True)
class Conversation:
    """A conversation, question by question, each answered with so many tokens as the stub engine says them."""

    form: Form
    turns: int
    tokens: int
    stream: bool

    @cached_property
    def _bodies(self) -> list[tuple[bytes, bytes]]:
        """Of each turn the body before its number and after it."""
        said: Turns = []
        bodies = []
        for turn in range(self.turns):
            said.append(("user", _question(turn)))
            before, after = json.dumps(self.form.body(said, self.tokens, self.stream)).split(NUMBER, 1)
            bodies.append((before.encode(), after.encode()))
            said.append(("assistant", answer_text(self.tokens, turn)))
        return bodies

    def request(self, url: str, key: str, number: int, turn: int) -> bytes:
        """The bytes that ask a turn of conversation `number`."""
        before, after = self._bodies[turn]
        form = self.form
        headers = {
            "Host": urlsplit(url).netloc,
            "User-Agent": "polar-benchmark",
            "Accept": "application/json",
            "Content-Type": "application/json",
            form.key_header: form.key_prefix + key,
            **(form.headers or {}),
            "Content-Length": str(len(before) + len(NUMBER) + len(after)),
        }
        path = form.stream_path if self.stream else form.path
        head = "".join(
            [f"POST {path} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in headers.items()), "\r\n"]
        )
        return head.encode() + before + b"%08d" % number + after


def _question(turn: int) -> str:
    opening = f"call {NUMBER}, turn {turn:03d}: " if turn == 0 else f"turn {turn:03d}: "
    return (opening + "the quick brown fox jumps over the lazy dog. " * 40)[:QUESTION_CHARS]


def turns_of(size: int, tokens: int) -> int:
    """Turns after which a conversation's request has about so many bytes."""
    return max(1, size // (QUESTION_CHARS + len(answer_text(tokens, 0)) + 100))
