"""A claim's calls as its log tells them, their messages expanded, in log order: what a new owner's memory is made of.

Linear in what the calls add, but for lists of references. A call whose base is gone, or that doesn't fit it, is passed over: what follows
from it is written in full.
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
class RecalledCall:
    """An answered call."""

    call: Completion
    messages: list[Message]
    """Whole."""
    told: Transcript
    answer: Message


def recalled(calls: Iterable[Completion]) -> Iterator[RecalledCall]:
    """The answered ones of a claim's calls, which are given in log order; of one id the first counts."""
    conversations: Conversations[Message] = Conversations()
    transcripts: dict[str | None, tuple[Spelled, bytes]] = {None: (Spelled(), b"[]")}
    """By call id: the messages with their answer, and the tools as JSON."""
    for call in calls:
        if call.outcome is not CallOutcome.ANSWERED or call.call_id in transcripts:
            continue
        try:
            shared = conversations.shared(call)
            rest, answer = _messages.decode(call.messages.rest), _answers.decode(call.answer)
        except (DeltaError, msgspec.DecodeError):
            continue
        messages = [*shared, *rest]
        base, tools = transcripts[call.messages.base]
        tools = tools if call.tools is None else call.tools
        spelled = base.upto(len(shared))
        for message in rest:
            spelled.append(spell(message))
        yield RecalledCall(call, messages, transcript_of(spelled, tools), answer)
        whole = spelled.upto(len(messages))
        whole.append(spell(answer))
        conversations.add(call.call_id, [*messages, answer])
        transcripts[call.call_id] = whole, tools
