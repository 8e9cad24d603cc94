"""What a harness's own headers tell of whose call it is: session, thread, agent, parent, retry.

Names on the left are ours, and stand on the log; one table says which header of which harness each is read from (seen by running them:
docs/harnesses.md). What a header doesn't say is never guessed here.
"""

from __future__ import annotations

from collections.abc import Mapping

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
VALUE_LIMIT = 200
"""Characters of a value that the log keeps."""


def lineage_of(headers: Mapping[str, str]) -> dict[str, str] | None:
    """Lineage by our names; None where the headers tell nothing."""
    found = {}
    for name, places in HEADERS.items():
        value = next((headers[place] for place in places if place in headers), None)
        if value:
            found[name] = value[:VALUE_LIMIT]
    return found or None
