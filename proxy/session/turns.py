"""An index of the turns that a claim's model sampled, by which a harness's spelling of a turn is replaced by the sampled message.

The tool messages after a restored turn get the sampled ids, so that the next prompt repeats the tokens that the engine sampled. Reasoning
that a harness leaves out returns if the turn follows the very messages that it answered; elsewhere it stays out. Invariant: an edited turn
stays as the harness wrote it (`proxy/session/spelling.py` defines an edit). Bounded: the oldest turns are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from proxy.chat import Message, Tool
from proxy.session.spelling import Meaning, adds_only_defaults, digest, match_rank, meaning_of
from topics.calls.delta import Spelled, link_after, spell

TURNS = 4096
"""Turns kept of a claim."""
BYTES = 8 * 1024 * 1024
"""Bytes of JSON kept of a claim's turns."""
SPELLINGS = 16_384
"""Spellings whose meaning is cached: some 2 MB."""
CANDIDATES = 16
"""Turns of one meaning that are compared, newest first, if neither place nor id identifies the turn: bounds a polling agent's cost."""


class RepeatedTurn(NamedTuple):
    """A sampled answer that a request repeats."""

    call_id: str
    position: int
    """Index of its message in the request."""
    is_ended: bool
    """Its last token ends turns: neither a limit nor a stop string ended the answer."""


@dataclass(frozen=True, slots=True, eq=False)
class _SampledTurn:
    """An answer that a harness may have seen."""

    call_id: str
    follows: bytes
    """Link of the last message of its request."""
    meaning: Meaning
    message: Message
    spelled: bytes
    link: bytes
    """Link of its own message, after those of its request."""
    frame: bytes
    """Digest of everything but messages that its prompt was rendered from."""
    is_ended: bool


class SampledTurns:
    """The answers of one claim's model."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, _SampledTurn] = OrderedDict()
        self._bytes = 0
        # Each list is oldest first.
        self._by_place: defaultdict[tuple[bytes, bytes], list[_SampledTurn]] = defaultdict(list)
        self._by_meaning: defaultdict[bytes, list[_SampledTurn]] = defaultdict(list)
        self._by_link: defaultdict[tuple[bytes, bytes], list[_SampledTurn]] = defaultdict(list)
        self._by_tool_call: dict[str, _SampledTurn] = {}
        """By the id of their first tool call, the newest."""
        self._meanings: dict[bytes, Meaning] = {}
        """By the digest of a spelling, so that a long history isn't parsed at each call."""

    def add(
        self, call_id: str, follows: bytes, message: Message, *, frame: bytes = b"", is_ended: bool = False
    ) -> None:
        """Adds the answer to the messages whose chain ends with the link `follows`.

        `frame`: digest of everything but messages that its prompt was rendered from.
        """
        spelled = spell(message)
        link = link_after(follows, spelled)
        turn = _SampledTurn(call_id, follows, meaning_of(message), message, spelled, link, frame, is_ended)
        self._turns[call_id] = turn
        self._bytes += len(spelled)
        self._by_place[follows, turn.meaning.rounded].append(turn)
        self._by_meaning[turn.meaning.rounded].append(turn)
        self._by_link[link, frame].append(turn)
        if message.tool_calls:
            self._by_tool_call[message.tool_calls[0].id] = turn
        while len(self._turns) > TURNS or self._bytes > BYTES:
            self.forget(next(iter(self._turns)))

    @property
    def size(self) -> int:
        """Estimated bytes in memory: a turn has its text twice, as a message and as it is spelled."""
        return 1_600 * len(self._turns) + 2 * self._bytes

    def forget(self, call_id: str) -> None:
        """Removes an answer that no harness has seen; unknown ids are ignored."""
        turn = self._turns.pop(call_id, None)
        if turn is None:
            return
        self._bytes -= len(turn.spelled)
        rounded = turn.meaning.rounded
        _remove(self._by_place, (turn.follows, rounded), turn)
        _remove(self._by_meaning, rounded, turn)
        _remove(self._by_link, (turn.link, turn.frame), turn)
        for call in turn.message.tool_calls[:1]:
            if self._by_tool_call.get(call.id) is turn:
                del self._by_tool_call[call.id]

    def repeated(self, spelled: Spelled, frame: bytes) -> RepeatedTurn | None:
        """The last answer in this frame that restored messages repeat after the very messages that it answered; None if there is none."""
        for at in range(len(spelled.links) - 1, -1, -1):
            turns = self._by_link.get((spelled.links[at], frame))
            if turns:
                return RepeatedTurn(turns[-1].call_id, at, turns[-1].is_ended)
        return None

    def restore(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[list[Message], Spelled]:
        """The messages as the model sampled and read them, and their spelling on the log; `tools` are those that the request declares."""
        restored: list[Message] = []
        spelled = Spelled()
        sampled_ids: dict[str, list[str]] = {}
        """Sampled ids of tool calls by the harness's ids; several if the harness gives several calls one id."""
        for message in messages:
            original = message
            if message.role == "assistant":
                written = spell(message)
                found = self._find(message, written, spelled.link, tools) if self._turns else None
                if found is not None and found.spelled != written:
                    is_in_place = found.follows == spelled.link
                    original = found.message if is_in_place else _without_omitted_reasoning(found.message, message)
                    written = found.spelled if original is found.message else spell(original)
                sampled_ids |= _sampled_ids(message, original)
            else:
                if message.role == "tool" and message.tool_call_id in sampled_ids:
                    original = _with_sampled_id(message, sampled_ids[message.tool_call_id])
                written = spell(original)
            restored.append(original)
            spelled.append(written)
        return restored, spelled

    def repeated_calls(self, messages: Sequence[Message], spelled: Spelled) -> frozenset[str]:
        """Ids of the calls whose answers restored messages repeat, in whatever place."""
        follows = [b"", *spelled.links]
        turns = (
            self._find(message, spelled.messages[at], follows[at], ())
            for at, message in enumerate(messages)
            if message.role == "assistant"
        )
        return frozenset(turn.call_id for turn in turns if turn is not None)

    def unknown_turns(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> frozenset[bytes]:
        """Digests of the assistant turns among the messages that this index has no answer for."""
        turns = ((message, spell(message)) for message in messages if message.role == "assistant")
        return frozenset(
            digest(written) for message, written in turns if self._find(message, written, b"", tools) is None
        )

    def _find(self, message: Message, written: bytes, follows: bytes, tools: Sequence[Tool]) -> _SampledTurn | None:
        """The answer that a turn repeats: the one to this very history, else the one with its id, else the newest of its meaning."""
        spelling = digest(written)
        meaning = self._meanings.get(spelling)
        if meaning is None:
            if len(self._meanings) >= SPELLINGS:
                self._meanings = {}
            meaning = self._meanings[spelling] = meaning_of(message)
        same_meaning = self._by_meaning.get(meaning.rounded)
        by_id = self._by_tool_call.get(message.tool_calls[0].id) if message.tool_calls else None
        if same_meaning is None:
            if by_id is None or not adds_only_defaults(message, by_id.message, tools):
                return None
            self._meanings[spelling] = by_id.meaning
            return _closest([by_id], message, by_id.meaning)
        return (
            _closest(self._by_place.get((follows, meaning.rounded), ()), message, meaning)
            or _closest([by_id] if by_id and by_id.meaning.rounded == meaning.rounded else (), message, meaning)
            or _closest(same_meaning[-CANDIDATES:], message, meaning)
        )


def _remove(index: defaultdict[Any, list[_SampledTurn]], key: object, turn: _SampledTurn) -> None:
    index[key].remove(turn)
    if not index[key]:
        del index[key]


def _closest(turns: Sequence[_SampledTurn], message: Message, meaning: Meaning) -> _SampledTurn | None:
    """Of turns with one meaning, oldest first, the newest of those that the message repeats most closely."""
    best: tuple[bool, ...] = ()
    found = None
    for turn in turns:
        rank = match_rank(message, meaning, turn.message, turn.meaning)
        if rank is not None and rank >= best:
            best, found = rank, turn
    return found


def _without_omitted_reasoning(sampled: Message, message: Message) -> Message:
    if sampled.reasoning and not message.reasoning:
        return msgspec.structs.replace(sampled, reasoning=None)
    return sampled


def _sampled_ids(message: Message, original: Message) -> dict[str, list[str]]:
    """Sampled ids of a turn's tool calls, in order, by the harness's."""
    ids: dict[str, list[str]] = {}
    for call, sampled in zip(message.tool_calls, original.tool_calls, strict=True):
        ids.setdefault(call.id, []).append(sampled.id)
    return ids


def _with_sampled_id(message: Message, ids: list[str]) -> Message:
    """A tool's message with the sampled id; calls that share an id are answered in their order."""
    sampled_id = ids.pop(0) if len(ids) > 1 else ids[0]
    return message if message.tool_call_id == sampled_id else msgspec.structs.replace(message, tool_call_id=sampled_id)
