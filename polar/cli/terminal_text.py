"""Text of models, tools and harnesses, made safe for a terminal: what would steer it is shown instead.

Invariant: nothing that comes out moves a cursor, changes a colour, turns the reading direction or hides itself; lines and tabs stay.
Control, format and lone surrogate characters become their Python escapes (`\\x1b`, `\\u202e`). Rich markup is the drawer's to avoid: what
is drawn goes into `rich.text.Text`, which reads none.
"""

from __future__ import annotations

import unicodedata

KEPT = frozenset("\n\t\u200c\u200d")
"""Lines and tabs, and the joiners that some scripts and emoji are written with."""
SHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: control, format, surrogate, separators of lines and paragraphs."""


class _Escapes(dict[int, str]):
    """By code point, each looked up once."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        steers = char not in KEPT and unicodedata.category(char) in SHOWN
        made = self[code] = char.encode("unicode_escape").decode() if steers else char
        return made


_escapes = _Escapes()


def visible(text: str) -> str:
    """The text with every character that would steer a terminal escaped."""
    return text if text.isascii() and text.isprintable() else text.translate(_escapes)
