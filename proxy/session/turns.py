"""The turns that a session's model said, put back where a harness repeats them in its own spelling.

Harnesses parse tool arguments and write them anew (`{"n" : 1.0}` becomes `{"n":1}`), add defaults to them, trim text and reasoning, drop
or invent the ids of tool calls. An assistant turn that says what an answer of this claim said is replaced by the very message that was
sampled, and the tool messages that follow get the ids of its calls, so that the next prompt repeats the tokens that the engine sampled.
Invariant: only what these rewrites can explain is put back; a turn that was edited stays as the harness wrote it, and reasoning that a
harness leaves out stays out, as its provider wouldn't see it either. Bounded: the oldest turns are forgotten.
"""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from proxy.chat import Message, TextPart, Tool
from proxy.session.defaults import is_completed
from topics.calls.delta import Spelled, link_after, spell

TURNS = 4096
BYTES = 8 * 1024 * 1024
"""Of a claim's turns, as JSON."""
SPELLINGS = 16_384
"""Spellings of turns that are known for what they say: some 2 MB."""
ALIKE = 16
"""Turns of equal words that are looked at, the newest, where nothing else tells which is meant."""
ROUNDED = re.compile(r"[0-9.]{16}|[0-9][eE]")
"""In arguments whose numbers may be more than JavaScript keeps."""
Number = Callable[[str], float | str | None]
_encode = msgspec.json.Encoder().encode


class _Words(NamedTuple):
    """What a turn says, as digests."""

    rounded: bytes
    """What every spelling of it has in common: numbers are as JavaScript keeps them."""
    exact: bytes
    """The same with the numbers that were written; equal to `rounded` where none is changed by that."""


class Repeated(NamedTuple):
    """An answer that a request repeats."""

    call_id: str
    position: int
    """Of its message in the request."""
    is_ended: bool
    """Its last token is one that ends turns: neither a limit nor a stop string ended it."""


UNLIKE = _Words(b"", b"")
"""Those of a turn that no answer can equal."""


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """An answer that a harness may have seen."""

    call_id: str
    follows: bytes
    """The link of its request's messages."""
    words: _Words
    message: Message
    spelled: bytes
    link: bytes
    """Of its request's messages and itself."""
    frame: bytes
    """Of what else its prompt was rendered."""
    is_ended: bool
    """Its last token is one that ends turns."""


class SampledTurns:
    """What one claim's model said."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, _Turn] = OrderedDict()
        self._bytes = 0
        self._in_place: defaultdict[tuple[bytes, bytes], list[_Turn]] = defaultdict(list)
        """By what they follow and their words."""
        self._alike: defaultdict[bytes, list[_Turn]] = defaultdict(list)
        """By their words, oldest first."""
        self._by_tool_call: dict[str, _Turn] = {}
        """By the id of their first tool call, the newest."""
        self._by_link: defaultdict[tuple[bytes, bytes], list[_Turn]] = defaultdict(list)
        """By their link and their frame, oldest first."""
        self._words: dict[bytes, _Words] = {}
        """By the digest of a spelling, so that a long history isn't parsed at each call."""

    def add(
        self, call_id: str, follows: bytes, message: Message, *, frame: bytes = b"", is_ended: bool = False
    ) -> None:
        """Notes an answer to the messages whose chain ends with the link `follows`; `frame` as `restore` takes it."""
        spelled = spell(message)
        turn = _Turn(call_id, follows, _words(message), message, spelled, link_after(follows, spelled), frame, is_ended)
        self._turns[call_id] = turn
        self._bytes += len(turn.spelled)
        self._in_place[follows, turn.words.rounded].append(turn)
        self._alike[turn.words.rounded].append(turn)
        if message.tool_calls:
            self._by_tool_call[message.tool_calls[0].id] = turn
        self._by_link[turn.link, frame].append(turn)
        while len(self._turns) > TURNS or self._bytes > BYTES:
            self.forget(next(iter(self._turns)))

    def forget(self, call_id: str) -> None:
        """No harness has seen this answer."""
        turn = self._turns.pop(call_id, None)
        if turn is None:
            return
        self._bytes -= len(turn.spelled)
        rounded = turn.words.rounded
        in_place, by_link = (turn.follows, rounded), (turn.link, turn.frame)
        for place, turns in ((in_place, self._in_place), (rounded, self._alike), (by_link, self._by_link)):
            turns[place].remove(turn)  # type: ignore[index] # each key goes with its own index
            if not turns[place]:  # type: ignore[index]
                del turns[place]  # type: ignore[arg-type]
        for call in turn.message.tool_calls[:1]:
            if self._by_tool_call.get(call.id) is turn:
                del self._by_tool_call[call.id]

    def repeated(self, spelled: Spelled, frame: bytes) -> Repeated | None:
        """The newest answer that restored messages repeat after the very messages that it answered; None: they repeat none."""
        for at in range(len(spelled.links) - 1, -1, -1):
            turns = self._by_link.get((spelled.links[at], frame))
            if turns:
                return Repeated(turns[-1].call_id, at, turns[-1].is_ended)
        return None

    def restore(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), frame: bytes | None = None
    ) -> tuple[list[Message], Spelled]:
        """The messages as the model said and read them, and how the log spells them; `tools` are what the request declares.

        `frame`, of a request whose prompt repeats tokens: what else it is rendered of. Answers to these very messages in this frame have
        their reasoning then, whether the harness keeps it or not: it is among the tokens.
        """
        restored: list[Message] = []
        spelled = Spelled()
        ids: dict[str, list[str]] = {}
        """Ids of tool calls as sampled, by the harness's; several where it gives several calls one."""
        for message in messages:
            told = message
            if message.role == "assistant":
                written = spell(message)
                found = self._find(message, written, spelled.link, tools) if self._turns else None
                if found is not None and found.spelled != written:
                    is_repeated = found.follows == spelled.link and found.frame == frame
                    told = found.message if is_repeated else _as_sampled(found.message, message)
                    written = found.spelled if told is found.message else spell(told)
                _note(ids, message, told)
            else:
                if message.role == "tool" and message.tool_call_id in ids:
                    told = _answering(message, ids[message.tool_call_id])
                written = spell(told)
            restored.append(told)
            spelled.append(written)
        return restored, spelled

    def strangers(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> frozenset[bytes]:
        """What tells those assistant turns apart that this claim's model, as far as is known here, hasn't said."""
        asked = ((message, spell(message)) for message in messages if message.role == "assistant")
        return frozenset(
            _digest(written) for message, written in asked if self._find(message, written, b"", tools) is None
        )

    def _find(self, message: Message, written: bytes, follows: bytes, tools: Sequence[Tool]) -> _Turn | None:
        """The answer that a message repeats: to this very history, else the one whose id it has, else the newest alike."""
        spelling = _digest(written)
        words = self._words.get(spelling)
        if words is None:
            if len(self._words) >= SPELLINGS:
                self._words = {}
            words = self._words[spelling] = _words(message)
        alike = self._alike.get(words.rounded)
        by_id = self._by_tool_call.get(message.tool_calls[0].id) if message.tool_calls else None
        if alike is None:
            if by_id is None or not _completes(message, by_id.message, tools):
                return None
            self._words[spelling] = by_id.words
            return _nearest([by_id], message, by_id.words)
        return (
            _nearest(self._in_place.get((follows, words.rounded), ()), message, words)
            or _nearest([by_id] if by_id is not None and by_id.words.rounded == words.rounded else (), message, words)
            or _nearest(alike[-ALIKE:], message, words)
        )


def _nearest(turns: Sequence[_Turn], message: Message, words: _Words) -> _Turn | None:
    """Of turns with the same rounded words, oldest first, the one that a message of these `words` repeats.

    None where its whitespace, its reasoning or its numbers are none's.
    """
    text = _text(message) or ""
    best: tuple[bool, ...] | None = None
    found = None
    for turn in turns:
        said = turn.message
        # Numbers are those that were said, or all rounded: another one of the same rounding was put there by an edit.
        if words.exact not in (turn.words.exact, turn.words.rounded):
            continue
        if not _is_cut_from(text, _text(said) or "") or (
            message.reasoning and not _is_trimmed(message.reasoning, said.reasoning or "")
        ):
            continue
        pairs = list(zip(said.tool_calls, message.tool_calls, strict=True))
        rank = (
            all(own.id == told.id for own, told in pairs),
            words.exact == turn.words.exact,
            all(own.function.arguments == told.function.arguments for own, told in pairs),
            text == said.content,
            message.reasoning == said.reasoning,
        )
        if best is None or rank >= best:
            best, found = rank, turn
    return found


def _completes(message: Message, said: Message, tools: Sequence[Tool]) -> bool:
    """Whether a message says what was said, but for defaults among the arguments of its tool calls."""
    names = [call.function.name for call in message.tool_calls]
    if names != [call.function.name for call in said.tool_calls] or _stripped(message) != _stripped(said):
        return False
    schemas = {tool.function.name: bytes(tool.function.parameters) for tool in tools}
    pairs = zip(names, message.tool_calls, said.tool_calls, strict=True)
    return all(
        is_completed(told.function.arguments, own.function.arguments, schemas.get(name, b""))
        for name, told, own in pairs
    )


def _stripped(message: Message) -> str | None:
    text = _text(message)
    return None if text is None else text.strip()


def _is_trimmed(text: str, said: str) -> bool:
    """Whether a text is what was said, but for whitespace cut off at its ends."""
    return text == said or (text.strip() == said.strip() and _is_cut_from(text, said))


def _is_cut_from(text: str, said: str) -> bool:
    return text in said


def _as_sampled(said: Message, message: Message) -> Message:
    """What was sampled, in the place of a message that repeats it; without its reasoning where the message has none."""
    if said.reasoning and not message.reasoning:
        return msgspec.structs.replace(said, reasoning=None)
    return said


def _note(ids: dict[str, list[str]], message: Message, told: Message) -> None:
    """From here on these ids are those of this turn's calls."""
    noted: dict[str, list[str]] = {}
    for call, sampled in zip(message.tool_calls, told.tool_calls, strict=True):
        noted.setdefault(call.id, []).append(sampled.id)
    ids |= noted


def _answering(message: Message, sampled: list[str]) -> Message:
    """A tool's message with the id that was sampled; where calls share an id they are answered in their order."""
    own = sampled.pop(0) if len(sampled) > 1 else sampled[0]
    return message if message.tool_call_id == own else msgspec.structs.replace(message, tool_call_id=own)


def _words(message: Message) -> _Words:
    """Of what the rewrites leave alone: trimmed text, tools' names, arguments by value. Reasoning is compared apart."""
    text = _text(message)
    if text is None or message.name is not None:
        return UNLIKE
    rounded = _said(text, message, _rounded)
    may_round = any(ROUNDED.search(call.function.arguments) for call in message.tool_calls)
    return _Words(rounded, _said(text, message, _exact) if may_round else rounded)


def _said(text: str, message: Message, number: Number) -> bytes:
    calls = [(call.function.name, _value(call.function.arguments, number)) for call in message.tool_calls]
    return _digest(_encode((text.strip(), calls)))


def _text(message: Message) -> str | None:
    """The text of a turn, however it is parted; None where it is not text alone."""
    if not isinstance(message.content, list):
        return message.content or ""
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    return "".join(texts) if len(texts) == len(message.content) else None


def _value(arguments: str, number: Number) -> str:
    """Arguments in one spelling of their JSON value, with each number as `number` has it; as they are where they are no JSON."""
    try:
        value = json.loads(
            arguments.strip() or "{}", parse_int=number, parse_float=number, parse_constant=lambda _: None
        )
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _rounded(digits: str) -> float | None:
    """A number as JavaScript keeps it."""
    value = float(digits)
    return value + 0.0 if math.isfinite(value) else None  # -0 is 0 there, and infinity null


def _exact(digits: str) -> float | str | None:
    """The same, or its digits where that changes it."""
    value = _rounded(digits)
    try:
        return value if value is not None and Decimal(repr(value)) == Decimal(digits) else digits
    except ArithmeticError:  # an exponent beyond Decimal's
        return digits


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
