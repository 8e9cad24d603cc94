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


@dataclass(frozen=True, slots=True)
class _Said:
    """What a later call may share: messages and answer, and the tools."""

    messages: list[Message]
    spelled: Spelled
    tools: bytes


def recalled(calls: Iterable[Completion]) -> Iterator[RecalledCall]:
    """The answered ones of a claim's calls, which are given in log order; of one id the first counts."""
    known: dict[str | None, _Said] = {None: _Said([], Spelled(), b"[]")}
    for call in calls:
        base, shared = known.get(call.messages.base), call.messages.shared
        if call.outcome is not CallOutcome.ANSWERED or call.call_id in known:
            continue
        if base is None or shared > len(base.messages):
            continue
        try:
            rest, answer = _messages.decode(call.messages.rest), _answers.decode(call.answer)
        except msgspec.DecodeError:
            continue
        messages = base.messages[:shared] + rest
        spelled = base.spelled.upto(shared)
        for message in rest:
            spelled.append(spell(message))
        tools = base.tools if call.tools is None else call.tools
        yield RecalledCall(call, messages, transcript_of(spelled, tools), answer)
        said = spelled.upto(len(messages))
        said.append(spell(answer))
        known[call.call_id] = _Said([*messages, answer], said, tools)
