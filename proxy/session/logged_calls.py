"""A claim's answered calls as its log holds them, with their messages expanded, in log order: a new owner rebuilds its memory from them.

Linear in what each call adds, except for lists of references. A call whose base is missing, or that doesn't fit it, is skipped: the calls
after it are written in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from proxy.chat import Message
from proxy.session.history import Transcript, transcript_of
from topics.calls.delta import Spelled, spell
from topics.calls.resolver import Conversations, DeltaError
from topics.types.completion import CallOutcome, Completion

_messages = msgspec.json.Decoder(list[Message])
_answers = msgspec.json.Decoder(Message)


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """An answered call on the log."""

    record: Completion
    messages: list[Message]
    """All messages of its request."""
    transcript: Transcript
    answer: Message


def expanded(records: Iterable[Completion]) -> Iterator[LoggedCall]:
    """The answered ones of a claim's calls, given in log order; of several records of one call the first counts."""
    conversations: Conversations[Message] = Conversations()
    transcripts: dict[str | None, tuple[Spelled, bytes]] = {None: (Spelled(), b"[]")}
    """By call id: the messages with their answer, and the tools as JSON."""
    for record in records:
        if record.outcome is not CallOutcome.ANSWERED or record.call_id in transcripts:
            continue
        try:
            shared = conversations.shared(record)
            new, answer = _messages.decode(record.messages.rest), _answers.decode(record.answer)
        except (DeltaError, msgspec.DecodeError):
            continue
        messages = [*shared, *new]
        base, tools = transcripts[record.messages.base]
        tools = tools if record.tools is None else record.tools
        spelled = base.upto(len(shared))
        for message in new:
            spelled.append(spell(message))
        yield LoggedCall(record, messages, transcript_of(spelled, tools), answer)
        with_answer = spelled.upto(len(messages))
        with_answer.append(spell(answer))
        conversations.add(record.call_id, [*messages, answer])
        transcripts[record.call_id] = with_answer, tools
