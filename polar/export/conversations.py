"""A session's calls as conversations, by their messages: the order in which a person or another system reads them.

Pure. Each call is one turn of one conversation. A call continues a conversation if its messages begin with all messages of that
conversation's last call and its answer, and both have the same kind. Otherwise it begins a conversation of its own: a sub-agent, a side
call, a history that the harness rewrote, a second answer to one prompt. A call whose messages aren't known is alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from polar.export.sessions import ExportedCall

Message = dict[str, Any]
"""A canonical chat message."""
MAIN = "main"


@dataclass(frozen=True)
class Turn:
    """A call, and what its prompt adds to the conversation."""

    call: ExportedCall
    added: Sequence[Message]
    """The messages of its prompt after the turn before and that turn's answer; of a first turn, all."""


@dataclass
class Conversation:
    """Turns that continue one another; at least one."""

    turns: list[Turn]
    whole: list[Message] = field(repr=False)
    """The messages of the last turn, with its answer; empty: nothing can continue it."""

    @property
    def first(self) -> ExportedCall:
        return self.turns[0].call

    @property
    def history(self) -> int:
        """Number of messages of the first prompt up to its last assistant message: they were said elsewhere."""
        answers = [at for at, message in enumerate(self.turns[0].added) if message["role"] == "assistant"]
        return answers[-1] + 1 if answers else 0


def conversations(calls: Iterable[ExportedCall]) -> list[Conversation]:
    """The conversations of a session: the main one, then the others as they began. Empty without calls.

    The main one is the longest of kind `main`, in turns; of equal ones the first. Without any of that kind it is the first.
    """
    found: list[Conversation] = []
    for call in calls:
        before = _continued(found, call)
        if before is None:
            before = Conversation([], [])
            found.append(before)
        before.turns.append(Turn(call, call.messages[len(before.whole) :]))
        answer = [] if call.answer is None else [call.answer]
        before.whole = [] if call.gap is not None else [*call.messages, *answer]
    if found:
        main = max(found, key=lambda one: (one.first.call.kind == MAIN, len(one.turns) * (one.first.call.kind == MAIN)))
        found.remove(main)
        found.insert(0, main)
    return found


def _continued(found: Iterable[Conversation], call: ExportedCall) -> Conversation | None:
    """The conversation that the call continues: its parent's if that fits, otherwise the longest that fits."""
    fitting = [one for one in found if _fits(one, call)]
    parents = [one for one in fitting if one.turns[-1].call.call.call_id == call.call.parent]
    return max(parents or fitting, key=lambda one: len(one.whole), default=None)


def _fits(one: Conversation, call: ExportedCall) -> bool:
    length = len(one.whole)
    if not 0 < length <= len(call.messages) or one.first.call.kind != call.call.kind:
        return False
    # The last message first: it differs most often.
    return call.messages[length - 1] == one.whole[-1] and call.messages[:length] == one.whole
