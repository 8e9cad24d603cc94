"""The thread of a call: the agent or conversation that a harness's headers name. Proxy and builder tell threads apart by it."""

from __future__ import annotations

from collections.abc import Mapping

PER_CALL = frozenset({"retry", "window", "request", "source"})
"""Lineage keys that may differ between calls of one thread: the call's try, how often its history was compacted, its kind of request, and
why the thread was begun, which Codex doesn't state in every request (what it begins for a title has a thread id of its own)."""

Thread = frozenset[tuple[str, str]]


def thread_of(lineage: Mapping[str, str] | None) -> Thread | None:
    """The thread of a call with this lineage (`Completion.lineage`); None if its headers name none."""
    return frozenset(item for item in (lineage or {}).items() if item[0] not in PER_CALL) or None
