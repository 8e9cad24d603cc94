"""What a claim's work looks like, thread by thread: the system prompts that it has, and whether it declares tools.

A harness that works with tools asks other questions in between: for a title, or whether a command is safe. Such a request has no tools, a
system prompt of its own, and no answer of the work among its messages. An agent without tools sends nothing else, so requests are told
apart only in a thread whose work declared tools. Only answered calls count: a client whose server refuses tools may go on without them,
under another prompt. A claim that was read back from its log knows what its last owner knew.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from proxy.chat import ChatRequest, Message
from proxy.session.history import NO_TOOLS, Transcript
from proxy.session.logged_calls import LoggedCall
from topics.calls.threads import Thread, thread_of
from topics.types.building import TRAINED


class Work:
    """The work of one claim, as its answered calls show it."""

    def __init__(self) -> None:
        self._prompts: set[tuple[Thread | None, bytes]] = set()
        """Threads with the links of their work's system prompts. All calls whose headers name no thread are one thread."""
        self._with_tools: set[Thread | None] = set()
        """Threads whose work declared tools."""
        self._side_calls: set[str] = set()
        """Ids of the calls that are no work, as a rule or this class found."""

    @property
    def size(self) -> int:
        """Estimated bytes in memory."""
        return 600 * len(self._prompts) + 100 * len(self._side_calls)

    def add(self, call: LoggedCall) -> None:
        """Adds an answered call."""
        record = call.record
        if record.kind not in TRAINED:
            self._side_calls.add(record.call_id)
            return
        thread = thread_of(record.lineage)
        if _has_system_prompt(call.messages):
            self._prompts.add((thread, call.transcript.messages.links[0]))
        if call.transcript.tools_digest != NO_TOOLS:
            self._with_tools.add(thread)

    def has_other_prompt(self, request: ChatRequest, transcript: Transcript, lineage: Mapping[str, str] | None) -> bool:
        """Whether a request without tools has another system prompt than all work of its thread, which has tools."""
        if request.tools or not _has_system_prompt(request.messages):
            return False
        thread = thread_of(lineage)
        return thread in self._with_tools and (thread, transcript.messages.links[0]) not in self._prompts

    def are_side_calls(self, call_ids: Set[str]) -> bool:
        """Whether none of these calls is work."""
        return call_ids <= self._side_calls


def _has_system_prompt(messages: list[Message]) -> bool:
    return bool(messages) and messages[0].role in ("system", "developer")
