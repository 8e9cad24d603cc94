"""The kinds of calls that the proxy's benchmark makes, and the requests of each, session by session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.conversation import CHAT, FORMS, Conversation, Form, turns_of
from benchmarks.report import say
from topics.environment import registry

SESSION_CALLS = 25
"""Of a session whose calls have nothing in common; its state is dropped with it."""


@dataclass(frozen=True)
class Case:
    """One kind of call."""

    form: Form = CHAT
    size: int = 1_000
    """Bytes of the request's body; of the last one's where it grows."""
    tokens: int = 64
    stream: bool = False
    grows: bool = False
    beside_litellm: bool = False
    wanted_ms: float | None = None
    """Added at the median."""

    @property
    def name(self) -> str:
        size = f"{'to ' if self.grows else ''}{self.size // 1000} kB"
        return f"{self.form.name} {size}, {self.tokens} tokens{', streamed' if self.stream else ''}"

    @property
    def is_short(self) -> bool:
        return self.size == 1_000 and self.tokens == 64 and not self.stream


def one_by_one() -> list[Case]:
    """All of OpenAI Chat's, and of the other dialects those that differ from it."""
    found = [
        Case(wanted_ms=2.2, beside_litellm=True),
        Case(stream=True, wanted_ms=2.5, beside_litellm=True),
        Case(tokens=512),
        Case(tokens=512, stream=True, wanted_ms=4.0),
        Case(size=60_000, wanted_ms=4.0, beside_litellm=True),
        Case(size=60_000, tokens=512),
        Case(size=60_000, grows=True, wanted_ms=4.0),
        Case(size=60_000, grows=True, stream=True),
        Case(size=60_000, tokens=512, grows=True),
    ]
    known = registry.names(registry.Kind.DIALECT)
    for form in FORMS[1:]:
        if form.name not in known:
            say(f"{form.name} is left out: no such dialect is installed")
            continue
        found += [
            Case(form, wanted_ms=2.2),
            Case(form, stream=True, wanted_ms=2.5),
            Case(form, tokens=512, stream=True, wanted_ms=4.0),
            Case(form, size=60_000, grows=True, wanted_ms=4.0),
        ]
    return found


def at_once() -> list[Case]:
    """What is asked by many callers."""
    return [Case(beside_litellm=True), Case(stream=True), Case(size=60_000, grows=True)]


class Asking:
    """Requests of a kind to one server. No conversation's number comes twice in a process."""

    _last = 0

    def __init__(self, url: str, case: Case, key: Callable[[], str], form: Form | None = None) -> None:
        """`key` makes a session's key; `form` where it isn't the case's own."""
        self.url = url
        self._grows = case.grows
        self._key = key
        self._conversation = Conversation(form or case.form, turns_of(case.size, case.tokens), case.tokens, case.stream)

    def session(self) -> Iterator[bytes]:
        """One session's requests, with a new key."""
        yield from self.session_of(self._key())

    def session_of(self, key: str) -> Iterator[bytes]:
        """One session's requests."""
        turns = self._conversation.turns
        if self._grows:
            number = self._number()
            for turn in range(turns):
                yield self._conversation.request(self.url, key, number, turn)
            return
        for _ in range(SESSION_CALLS):
            yield self._conversation.request(self.url, key, self._number(), turns - 1)

    def sessions(self) -> Iterator[bytes]:
        """Session after session, for ever."""
        while True:
            yield from self.session()

    @classmethod
    def _number(cls) -> int:
        cls._last += 1
        return cls._last
