"""What a harness's own headers tell of whose call it is: session, thread, agent, parent, compaction, retry.

Names on the left are ours, and stand on the log; one table says which header of which harness each is read from (seen by running them:
docs/harnesses.md). Codex also says some of it as JSON in one header. What no header says is never guessed here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topics.environment.keys import redacted

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
"""In the order in which they are looked for: Claude Code, Codex, opencode, pi; `retry` is that of the providers' own clients."""
TURN_METADATA = "x-codex-turn-metadata"
VALUE_LIMIT = 200
"""Characters of a value that the log keeps."""


class _TurnMetadata(msgspec.Struct):
    """Codex's, as far as it tells more than its other headers."""

    request_kind: str | None = None
    parent_thread_id: str | None = None


_turns = msgspec.json.Decoder(_TurnMetadata)


def lineage_of(headers: Mapping[str, str]) -> dict[str, str] | None:
    """Lineage by our names; None where the headers tell nothing."""
    found: dict[str, str | None] = {}
    for name, places in HEADERS.items():
        found[name] = next((headers[place] for place in places if place in headers), None)
    if TURN_METADATA in headers:
        turn = _turn(headers[TURN_METADATA])
        found["request"] = turn.request_kind
        found["parent_thread"] = found["parent_thread"] or turn.parent_thread_id
    told = {name: _text(value) for name, value in found.items() if value}
    return told or None


def _text(value: str) -> str:
    """As the log takes it: of bytes that are no UTF-8 aiohttp makes halves of surrogates; and some client sends its key as its session."""
    return redacted(value)[:VALUE_LIMIT].encode(errors="replace").decode()


def _turn(metadata: str) -> _TurnMetadata:
    try:
        return _turns.decode(metadata)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return _TurnMetadata()
