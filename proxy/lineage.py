"""The lineage of a call by the harness's own headers: session, thread, agent, parent, compaction, retry.

One table maps our names, which the log uses, to the headers of each harness (found by running them: docs/harnesses.md). Codex also sends
some of it as JSON in one header. Lineage that no header states is never guessed. The client's own name is beside it: its User-Agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from topics.environment.redaction import redacted

HEADERS: dict[str, tuple[str, ...]] = {
    "session": ("x-claude-code-session-id", "session-id", "x-session-id", "session_id"),
    "thread": ("thread-id",),
    "agent": ("x-claude-code-agent-id",),
    "parent_agent": ("x-claude-code-parent-agent-id",),
    "parent_thread": ("x-codex-parent-thread-id",),
    "parent_session": ("x-parent-session-id",),
    "subagent": ("x-openai-subagent",),
    "window": ("x-codex-window-id",),
    "retry": ("x-stainless-retry-count",),
}
"""In order of precedence: Claude Code, Codex, opencode, pi; the providers' own clients send the header of `retry`."""
TURN_METADATA = "x-codex-turn-metadata"
VALUE_LIMIT = 200
"""Characters of a value that the log keeps."""


class _TurnMetadata(msgspec.Struct):
    """The fields of Codex's JSON header that its other headers lack."""

    request_kind: str | None = None
    thread_source: str | None = None
    parent_thread_id: str | None = None


_turns = msgspec.json.Decoder(_TurnMetadata)


def lineage_of(headers: Mapping[str, str]) -> dict[str, str] | None:
    """Lineage by our names; None if no header states any."""
    found: dict[str, str | None] = {}
    for name, places in HEADERS.items():
        found[name] = next((headers[place] for place in places if place in headers), None)
    if TURN_METADATA in headers:
        turn = _turn(headers[TURN_METADATA])
        found["request"] = turn.request_kind
        found["source"] = turn.thread_source
        found["parent_thread"] = found["parent_thread"] or turn.parent_thread_id
    return {name: log_text(value) for name, value in found.items() if value} or None


def client_of(headers: Mapping[str, str]) -> str | None:
    """The client's name and version by its User-Agent; None if it sent none."""
    agent = headers.get("user-agent")
    return _client(agent) if agent else None


@lru_cache(maxsize=256)
def _client(agent: str) -> str:
    """All calls of a client send the same text, so it is cleaned once."""
    return log_text(agent)


def log_text(value: str, limit: int = VALUE_LIMIT) -> str:
    """A value for the log: without keys, which some client sends as its session, and without the lone surrogates that aiohttp makes."""
    return redacted(value)[:limit].encode(errors="replace").decode()


def _turn(metadata: str) -> _TurnMetadata:
    try:
        return _turns.decode(metadata)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return _TurnMetadata()
