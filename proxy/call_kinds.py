"""The kind of a call: the harness's main work, a sub-agent's, a compaction, or a side call (a title, a router, …) that isn't trained.

One table of rules; the first that matches decides. A call that none matches is main work, or BESIDE_WORK if it differs from the work of
its thread (`proxy/session/work.py`). The log names the rule beside the kind, so that people can check it. Evidence is a header, or the
harness's own words in a system prompt: anywhere near its beginning if no tools are declared, otherwise its very first words. Claude Code
and Qwen Code also ask in a user message at the end of the conversation: then a part of that message must begin with their words.
What a tool prints never makes a call a side call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from proxy.chat import ChatRequest, Message, TextPart
from topics.types.building import SIDE


class Kind(NamedTuple):
    """A call's kind and the name of the rule that decided it; None for main work."""

    name: str
    rule: str | None = None


class Rule(NamedTuple):
    """A rule: its kind and name, and its condition."""

    kind: Kind
    holds: Callable[[ChatRequest, Mapping[str, str]], bool]


MAIN = Kind("main")
BESIDE_WORK = Kind(SIDE, "no_tools_beside_work")
TEXT_LIMIT = 800
"""Characters of a text that rules search: harnesses state their request first (opencode's compaction after 500), the task follows."""


def kind_of(request: ChatRequest, lineage: Mapping[str, str] | None) -> Kind:
    """The kind of the first rule that holds."""
    return next((rule.kind for rule in RULES if rule.holds(request, lineage or {})), MAIN)


def _lineage(name: str, value: str | None = None) -> Callable[[ChatRequest, Mapping[str, str]], bool]:
    return lambda _, lineage: name in lineage and value in (None, lineage[name])


def _has_system_words(words: str) -> Callable[[ChatRequest, Mapping[str, str]], bool]:
    """Holds for a request without tools whose system prompt contains these words."""
    pattern = re.compile(words, re.IGNORECASE)
    return lambda request, _: not request.tools and bool(pattern.search(_system(request)))


def _begins_with(words: str) -> Callable[[ChatRequest, Mapping[str, str]], bool]:
    """Holds for a request whose system prompt begins with these words, with tools or without."""
    pattern = re.compile(words)
    return lambda request, _: bool(pattern.match(_system(request)))


def _is_quota_probe(request: ChatRequest, _: Mapping[str, str]) -> bool:
    if request.sampling.max_tokens != 1 or len(request.messages) != 1:
        return False
    return _text(request.messages[0]) == "quota"


def _has_hosted_tools_alone(request: ChatRequest, _: Mapping[str, str]) -> bool:
    return bool(request.hosted_tools) and not request.tools


def _ends_in_compaction(request: ChatRequest, _: Mapping[str, str]) -> bool:
    """Claude Code asks for a compaction at the end of the conversation, with its tools declared."""
    if not request.messages or request.messages[-1].role != "user":
        return False
    first, then = CLAUDE_COMPACTION
    return any(text.startswith(first) and then in text for text in _texts(request.messages[-1]))


def _asks_in_qwen_code(words: str) -> Callable[[ChatRequest, Mapping[str, str]], bool]:
    """Holds for a request of Qwen Code's main agent whose last message is a user's and has a part that begins with these words.

    A request without an answer doesn't count: there the words are a task, perhaps one about Qwen Code.
    """

    def holds(request: ChatRequest, _: Mapping[str, str]) -> bool:
        if not request.messages or not _system(request).startswith("You are Qwen Code"):
            return False
        *earlier, last = request.messages
        is_question = last.role == "user" and any(text.startswith(words) for text in _texts(last))
        return is_question and any(message.role == "assistant" for message in earlier)

    return holds


def _is_next_speaker_check(request: ChatRequest, _: Mapping[str, str]) -> bool:
    """Gemini CLI asks in a user message, so the rule looks for its response schema."""
    return not request.tools and b"next_speaker" in bytes(request.response_format)


CLAUDE_COMPACTION = ("CRITICAL: Respond with TEXT ONLY", "create a detailed summary of")
QWEN_COMPACTION = "You are the component that summarizes a conversation when its context window is about to overflow"
"""Qwen Code asks at the end of the conversation, with its tools; if it gets no snapshot, then in a system prompt, without tools."""
RULES = [
    Rule(Kind("compaction", "codex_request_kind"), _lineage("request", "compaction")),
    Rule(Kind("prewarm", "codex_request_kind"), _lineage("request", "prewarm")),
    Rule(Kind("compaction", "claude_code_compact_prompt"), _ends_in_compaction),
    Rule(Kind("compaction", "qwen_code_compact_prompt"), _asks_in_qwen_code(QWEN_COMPACTION)),
    Rule(
        Kind("compaction", "no_tools_summarise_prompt"),
        _has_system_words(
            r"CONTEXT CHECKPOINT COMPACTION|<state_snapshot>|tasked with summarizing conversations|only output the structured summary"
            rf"|{QWEN_COMPACTION}"
        ),
    ),
    Rule(
        Kind("suggestion", "suggestion_mode_prompt"),
        _asks_in_qwen_code("[SUGGESTION MODE: Suggest what the user might naturally type next"),
    ),
    Rule(
        Kind("title", "no_tools_title_prompt"),
        _has_system_words(
            r"title generator|generate a (concise|brief|short) title|sentence-case title|you are naming a coding session"
        ),
    ),
    Rule(Kind("title", "codex_thread_source"), _lineage("source", "thread_title")),
    Rule(
        Kind("summary", "no_tools_summary_prompt"),
        _has_system_words(r"^summarize what was done in this conversation"),
    ),
    Rule(Kind("router", "no_tools_routing_prompt"), _has_system_words(r"task routing AI|classify its complexity")),
    Rule(
        Kind("classifier", "no_tools_security_prompt"),
        _has_system_words(r"you are a security monitor for autonomous AI coding agents"),
    ),
    Rule(
        Kind("classifier", "security_classifier_prompt"),
        _begins_with(r"You are a security classifier for an AI coding agent operating in auto mode"),
    ),
    Rule(
        Kind("memory", "memory_agent_prompt"),
        _begins_with(
            r"You are (now acting as the managed memory extraction subagent|performing a managed memory dream"
            r"|reviewing this conversation to extract reusable skills)"
        ),
    ),
    Rule(Kind("next_speaker", "schema_for_next_speaker"), _is_next_speaker_check),
    Rule(
        Kind("commit_message", "no_tools_commit_prompt"),
        _has_system_words(r"engineer that generates [\w, -]*git commit messages"),
    ),
    Rule(Kind("web_search", "hosted_tools_alone"), _has_hosted_tools_alone),
    Rule(Kind("quota", "one_token_of_quota"), _is_quota_probe),
    Rule(Kind("subagent", "agent_header"), _lineage("agent")),
    Rule(Kind("subagent", "codex_subagent_header"), _lineage("subagent")),
    Rule(Kind("subagent", "parent_session_header"), _lineage("parent_session")),
]


def _system(request: ChatRequest) -> str:
    first = next((message for message in request.messages if message.role in ("system", "developer")), None)
    return "" if first is None else _text(first)


def _text(message: Message, limit: int | None = TEXT_LIMIT) -> str:
    """The first `limit` characters of each part of a message's text."""
    return "\n".join(text[:limit] for text in _texts(message))


def _texts(message: Message) -> list[str]:
    if isinstance(message.content, list):
        return [part.text for part in message.content if isinstance(part, TextPart)]
    return [message.content or ""]
