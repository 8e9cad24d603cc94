"""`Story`: one session's rows, calls, message tree and trajectory, as plain data.

Invariant: `messages` has every message once, after the message that it follows. A call's conversation is the path to its last request
message. `reading.py` and `assembly.py` make the story.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from topics.completions import RefusedRequest
from topics.types.completion import Completion
from topics.types.session import SessionState, TaskState
from topics.types.trajectory import ROOT, Call, Trajectory

MAIN = "main"
ANSWERED = "answered"


@dataclass(frozen=True)
class Message:
    """One canonical chat message, and the one that it follows."""

    parent: int
    """Index into `Story.messages`; ROOT where it starts a conversation."""
    body: dict[str, Any]
    brought_by: int
    """Index into `Story.calls` of the first call whose request or answer it stands in."""


@dataclass(frozen=True)
class CallStory:
    number: int
    """From 1, in log order: what people call it by."""
    call: Call
    """The trajectory's; where that isn't out, or doesn't hold it, what the builder would say of it now."""
    record: Completion | None
    """As the log has it; None where it has left the log."""
    asked: int
    """Index into `Story.messages` of the last message of its request; ROOT where none is known."""
    said: int | None
    """Index of its answer; None where it has none, or its record has left the log."""
    tools: list[str]
    """Names of the tools that it was offered."""
    masked: str | None = None
    """Why what it sampled is trained in no trace: a reason code of the trajectory."""
    disowned: str | None = None
    """Why the proxy gave it up; None: it didn't."""
    is_late: bool = False
    """It came after `Build`."""
    gap: str | None = None
    """Why its prompt can't be expanded from the log, where that is so."""

    @property
    def is_answered(self) -> bool:
        return self.call.outcome == ANSWERED

    @property
    def shared_tokens(self) -> int | None:
        """How many of its prompt's tokens its base had; None where the record has left the log."""
        return None if self.record is None else self.record.prompt.shared


@dataclass(frozen=True)
class Story:
    """One session, from its records on Kafka."""

    task: TaskState
    session: SessionState
    calls: list[CallStory]
    messages: list[Message]
    trajectory: Trajectory | None
    notes: list[str]
    """Sentences about missing data, and where it is."""
    refused: list[RefusedRequest]
    """Requests that the proxy refused before they became calls, in log order."""

    @property
    def artifacts(self) -> dict[str, str]:
        """Blob reference by name."""
        return self.session.artifacts or (self.trajectory.artifacts if self.trajectory else None) or {}

    def number_of(self, call_id: str) -> int | None:
        """The call's number. None if the story lacks the call."""
        return next((call.number for call in self.calls if call.call.call_id == call_id), None)

    def path(self, message: int | None) -> list[int]:
        """Indexes of the messages from the conversation's first one to this."""
        found: list[int] = []
        while message is not None and message != ROOT:
            found.append(message)
            message = self.messages[message].parent
        return found[::-1]

    def tool_calls(self, call: CallStory) -> list[str]:
        return (
            [] if call.said is None else [called["function"]["name"] for called in calls_of(self.messages[call.said])]
        )


def calls_of(message: Message) -> list[dict[str, Any]]:
    """The tool calls of a message: `{id, function: {name, arguments}}` each."""
    found: list[dict[str, Any]] = message.body.get("tool_calls") or []
    return found
