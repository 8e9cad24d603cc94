"""Words of a Dockerfile: quotes, escapes and variables, by the rules of Docker's own parser (buildkit, frontend/dockerfile/shell).

A variable without a known value is an error, since the base image may set it. The package dockerfile-parse splits words; its substitution
drops such variables and doesn't know `${V:-d}`.
"""

from __future__ import annotations

from collections.abc import Mapping

Values = Mapping[str, str | None]
"""None: a variable that is declared, and has no value."""
SPECIAL = "@*#?-$!0"
"""Parameters of a shell with one character."""


class WordError(ValueError):
    """A word that has no meaning, or one that isn't known here."""


def expanded(word: str, values: Values) -> str:
    """The word with its variables replaced, and without its quotes and escapes. Raises WordError."""
    return _Expansion(word, values).until("")


class _Expansion:
    """One word, read from left to right."""

    def __init__(self, word: str, values: Values) -> None:
        self._word, self._values, self._place = word, values, 0

    def until(self, stop: str) -> str:
        """What comes before the character `stop`, which is read as well; empty: all."""
        made = ""
        while char := self._next():
            if char == stop:
                return made
            match char:
                case "'":
                    made += self._quoted()
                case '"':
                    made += self._double_quoted()
                case "$":
                    made += self._variable()
                case "\\":
                    made += self._next()
                case _:
                    made += char
        if stop:
            raise WordError(f"{self._word!r} ends before {stop!r}")
        return made

    def _quoted(self) -> str:
        start = self._place
        while char := self._next():
            if char == "'":
                return self._word[start : self._place - 1]
        raise WordError(f"{self._word!r} ends inside of quotes")

    def _double_quoted(self) -> str:
        made = ""
        while char := self._next():
            match char:
                case '"':
                    return made
                case "$":
                    made += self._variable()
                case "\\" if self._seen in ('"', "$", "\\"):
                    made += self._next()
                case _:
                    made += char
        raise WordError(f"{self._word!r} ends inside of quotes")

    def _variable(self) -> str:
        """What stands for a dollar sign, which is read, and a name after it."""
        if self._seen != "{":
            name = self._name()
            return (self._value(name) or "") if name else "$"
        self._next()
        name, operator = self._name(), self._next()
        if not name:
            raise WordError(f"{self._word!r} has ${{…}} without a name")
        if operator == "}":
            return self._value(name) or ""
        counts_empty = operator != ":"
        operator = operator if counts_empty else self._next()
        if operator not in ("-", "+", "?"):
            raise WordError(f"{self._word!r}: of ${{{name}…}} only the forms with -, + and ? are translated")
        value, other = self._value(name), self.until("}")
        has_value = value is not None and (counts_empty or value != "")
        if operator == "+":
            return other if has_value else ""
        if operator == "?" and not has_value:
            raise WordError(f"{name} has no value: {other or self._word}")
        return value or "" if has_value else other

    def _name(self) -> str:
        start = self._place
        if self._seen and self._seen in SPECIAL:
            return self._next()
        while self._seen.isalnum() or self._seen == "_":
            self._next()
        return self._word[start : self._place]

    def _value(self, name: str) -> str | None:
        if name not in self._values:
            raise WordError(f"the Dockerfile doesn't set ${name}, and the base image may; write its value out")
        return self._values[name]

    @property
    def _seen(self) -> str:
        """The next character; empty at the end."""
        return self._word[self._place : self._place + 1]

    def _next(self) -> str:
        char = self._seen
        self._place += 1
        return char
