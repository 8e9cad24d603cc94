"""What a call is for: the harness's main work, a sub-agent's, a compaction, or a side call (a title, a router, …) that is not trained.

One table of rules, each named on the log beside the kind that it gave, so that its evidence can be questioned. The first that fits
counts; a call that none fits is main work. Evidence is a header, or the harness's own words in a system prompt without tools: what a user
writes to an agent never makes its calls side calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from proxy.chat import ChatRequest, Message, TextPart


class Kind(NamedTuple):
    """A call's kind, and the rule that said so; None for main work."""

    name: str
    rule: str | None = None


class Rule(NamedTuple):
    """Kind and name of a rule, and when it holds."""

    kind: Kind
    holds: Callable[[ChatRequest, Mapping[str, str]], bool]


MAIN = Kind("main")
LOOKED_AT = 800
"""Characters of a text that rules look at: harnesses begin with what they want (opencode's compaction says it after 500), and an agent's
task comes later."""


def kind_of(request: ChatRequest, lineage: Mapping[str, str] | None) -> Kind:
    """By the first rule that holds."""
    told = lineage or {}
    return next((rule.kind for rule in RULES if rule.holds(request, told)), MAIN)


def _lineage(name: str, value: str | None = None) -> Callable[[ChatRequest, Mapping[str, str]], bool]:
    return lambda _, told: name in told and value in (None, told[name])


def _is_told(words: str) -> Callable[[ChatRequest, Mapping[str, str]], bool]:
    """No tools, and the harness's words in the system prompt."""
    pattern = re.compile(words, re.IGNORECASE)
    return lambda request, _: not request.tools and bool(pattern.search(_system(request)))


def _is_quota_probe(request: ChatRequest, _: Mapping[str, str]) -> bool:
    if request.sampling.max_tokens != 1 or len(request.messages) != 1:
        return False
    return _text(request.messages[0]) == "quota"


def _has_hosted_tools_alone(request: ChatRequest, _: Mapping[str, str]) -> bool:
    return bool(request.hosted_tools) and not request.tools


def _ends_in_compaction(request: ChatRequest, _: Mapping[str, str]) -> bool:
    """Claude Code asks with its tools declared, at the end of the conversation."""
    text = _text(request.messages[-1], None) if request.messages else ""
    return all(words in text for words in CLAUDE_COMPACTION)


def _is_next_speaker_check(request: ChatRequest, _: Mapping[str, str]) -> bool:
    """Gemini CLI's, whose words stand in a user message: its schema has to be there, too."""
    return not request.tools and b"next_speaker" in bytes(request.response_format)


CLAUDE_COMPACTION = ("CRITICAL: Respond with TEXT ONLY", "create a detailed summary of")
RULES = [
    Rule(Kind("compaction", "codex_request_kind"), _lineage("request", "compaction")),
    Rule(Kind("prewarm", "codex_request_kind"), _lineage("request", "prewarm")),
    Rule(Kind("compaction", "claude_code_compact_prompt"), _ends_in_compaction),
    Rule(
        Kind("compaction", "no_tools_summarise_prompt"),
        _is_told(
            r"CONTEXT CHECKPOINT COMPACTION|<state_snapshot>|tasked with summarizing conversations|only output the structured summary"
        ),
    ),
    Rule(
        Kind("title", "no_tools_title_prompt"),
        _is_told(r"title generator|generate a (concise|brief|short) title|sentence-case title"),
    ),
    Rule(
        Kind("summary", "no_tools_summary_prompt"),
        _is_told(r"^summarize what was done in this conversation"),
    ),
    Rule(Kind("router", "no_tools_routing_prompt"), _is_told(r"task routing AI|classify its complexity")),
    Rule(Kind("next_speaker", "schema_for_next_speaker"), _is_next_speaker_check),
    Rule(
        Kind("commit_message", "no_tools_commit_prompt"),
        _is_told(r"engineer that generates [\w, -]*git commit messages"),
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


def _text(message: Message, limit: int | None = LOOKED_AT) -> str:
    """The first `limit` characters of each part of a message's text."""
    if isinstance(message.content, list):
        return "\n".join(part.text[:limit] for part in message.content if isinstance(part, TextPart))
    return (message.content or "")[:limit]
