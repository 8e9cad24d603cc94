"""The system prompts of a claim's work, by thread, and whether the work declares tools.

A harness that works with tools asks other questions in between: for a title, or whether a command is safe. Such a request has no tools, a
system prompt of its own, and no answer of the work among its messages. An agent without tools sends nothing else, so requests are told
apart only in a thread whose work declared tools. Only answered calls count: a client whose server refuses tools may go on without them,
under another prompt. A claim that was read back from its log knows what its last owner knew.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from sys import getsizeof

from proxy.chat import ChatRequest, Message
from proxy.session.history import NO_TOOLS, Transcript
from proxy.session.logged_calls import LoggedCall
from topics.calls.threads import Thread, thread_of
from topics.types.building import TRAINED


@dataclass(slots=True)
class _ThreadWork:
    """The work of one thread."""

    prompts: set[bytes] = field(default_factory=set)
    """Links of its system prompts."""
    has_tools: bool = False
    """Whether any of its calls declared tools."""


class Work:
    """The work of one claim, as its answered calls show it."""

    def __init__(self) -> None:
        self._threads: dict[Thread | None, _ThreadWork] = {}
        """All calls whose headers name no thread are one thread."""
        self._side_calls: set[str] = set()
        """Ids of the calls that are no work, as a rule or this class found."""
        self._bytes = 0

    @property
    def size(self) -> int:
        """Estimated bytes in memory."""
        return self._bytes + 100 * len(self._side_calls)

    def add(self, call: LoggedCall) -> None:
        """Adds an answered call."""
        record = call.record
        if record.kind not in TRAINED:
            self._side_calls.add(record.call_id)
            return
        thread = thread_of(record.lineage)
        work = self._threads.get(thread)
        if work is None:
            work = self._threads[thread] = _ThreadWork()
            self._bytes += 550 + sum(
                170 + getsizeof(value) for _, value in thread or ()
            )  # an agent chooses the headers
        if _has_system_prompt(call.messages) and (prompt := call.transcript.messages.links[0]) not in work.prompts:
            work.prompts.add(prompt)
            self._bytes += 100
        work.has_tools |= call.transcript.tools_digest != NO_TOOLS

    def has_other_prompt(self, request: ChatRequest, transcript: Transcript, lineage: Mapping[str, str] | None) -> bool:
        """Whether a request without tools has another system prompt than all work of its thread, which has tools."""
        if request.tools or not _has_system_prompt(request.messages):
            return False
        work = self._threads.get(thread_of(lineage))
        return work is not None and work.has_tools and transcript.messages.links[0] not in work.prompts

    def are_side_calls(self, call_ids: Set[str]) -> bool:
        """Whether none of these calls is work."""
        return call_ids <= self._side_calls


def _has_system_prompt(messages: list[Message]) -> bool:
    return bool(messages) and messages[0].role in ("system", "developer")
