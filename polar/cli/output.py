"""Everything that commands print: tables and JSON on stdout, notes on stderr.

Invariant: text of models, tools and harnesses can't control the terminal. `escaped` replaces control, format and lone surrogate characters
by their Python escapes (`\\x1b`, `\\u202e`), so no text moves the cursor, changes a colour, reverses the reading direction or hides itself.
Line ends and tabs stay; in a name (`escaped_line`) a line end is escaped, too, so no name begins a line of its own. In JSON the same
characters have JSON's escapes. Everything drawn by rich goes into `rich.text.Text`, which reads no markup.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec
import typer
from rich import box
from rich.console import Console, OverflowMethod
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 240
"""Columns of a table that isn't on a terminal."""
KEPT = frozenset("\n\t\u200c\u200d")
"""Line ends and tabs, and the joiners that some scripts and emoji need."""
ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: control, format, surrogate, line and paragraph separators."""
BARS = "▁▂▃▄▅▆▇█"
UNKNOWN = "·"
_encoder = msgspec.json.Encoder(decimal_format="number")
"""Timestamps and durations as ISO 8601, bytes as base64, NaN and infinity as null."""


class _Escapes(dict[int, str]):
    """Replacement by code point, computed once each."""

    def __init__(self, escape: Callable[[str], str]) -> None:
        self._escape = escape

    def __missing__(self, code: int) -> str:
        char = chr(code)
        is_control = char not in KEPT and unicodedata.category(char) in ESCAPED
        made = self[code] = self._escape(char) if is_control else char
        return made


_escapes = _Escapes(lambda char: char.encode("unicode_escape").decode())
_json_escapes = _Escapes(
    lambda char: "".join(f"\\u{unit:04x}" for unit in memoryview(char.encode("utf-16")[2:]).cast("H"))
)


def escaped(text: str) -> str:
    """The text with every character escaped that would control a terminal."""
    return text if text.isascii() and text.isprintable() else text.translate(_escapes)


def escaped_line(text: str) -> str:
    """The escaped text with `\\n` for a line end: for names, which have none unless somebody forges a line."""
    return escaped(text).replace("\n", "\\n")


def one_line(text: str) -> str:
    """The text as one escaped line, with a blank for each line end."""
    return escaped(" ".join(text.split()))


def say(text: str) -> None:
    """Print a line of text on stdout, escaped."""
    typer.echo(escaped(text))


def note(message: str) -> None:
    """Print `polar: message` on stderr, escaped."""
    typer.echo(f"polar: {escaped(message)}", err=True)


def print_json(document: Any) -> None:
    """Print a JSON document on stdout, as printable ASCII. Raises ValueError for NaN and infinity."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False).translate(_json_escapes))


def json_line(document: object) -> str:
    """A document as one line of JSON, with all its letters as they are: results may be large."""
    text = _encoder.encode(document).decode()
    return text if text.isascii() and text.isprintable() else text.translate(_json_escapes)


def show(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns; see `table`."""
    console().print(table(columns, rows))


def console() -> Console:
    """Stdout for people: with colours on a terminal unless `NO_COLOR` is set, otherwise `PIPE_WIDTH` wide."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPE_WIDTH)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], overflow: OverflowMethod = "fold", **style: Any
) -> Table:
    """Rows under their columns, None as a dash. A column whose name starts with `>` holds numbers and is right-aligned.

    On a narrow terminal the last column is folded first: a shortened id names nothing. Line ends stay in the last column alone, where the
    rest of the text is indented. `style` goes to rich's `Table`.
    """
    made = Table(**{"box": box.SIMPLE_HEAD, "pad_edge": False, "show_edge": False, "padding": (0, 1, 0, 0), **style})
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        name = Text(escaped_line(column.removeprefix(">")))
        made.add_column(name, justify=justify, no_wrap=column != columns[-1], overflow=overflow)
    escapes = [*[escaped_line] * (len(columns) - 1), escaped]
    for row in rows:
        made.add_row(*(_cell(value, escape) for value, escape in zip(row, escapes, strict=True)))
    return made


def _cell(value: object, escape: Callable[[str], str]) -> Text:
    match value:
        case None:
            return Text("–")
        case Text():
            return value
        case float():
            return Text(f"{value:.4g}")
        case _:
            return Text(escape(str(value)))


def counted(counts: dict[str, int]) -> str | None:
    """`3 COMPLETED, 1 FAILED`, escaped. None if there is nothing to count."""
    return ", ".join(f"{count} {escaped_line(name)}" for name, count in sorted(counts.items())) or None


def bars(rewards: Sequence[float | None]) -> str:
    """One character per sample: the height of its reward between 0 and 1, or in the range of these rewards; a dot for no reward."""
    known = [reward for reward in rewards if reward is not None]
    low, high = min([0.0, *known]) / 2, max([1.0, *known]) / 2  # halves: their difference is finite
    shares = (None if reward is None else (reward / 2 - low) / (high - low) for reward in rewards)
    return "".join(UNKNOWN if share is None else BARS[round(share * (len(BARS) - 1))] for share in shares)


def ago(ms: int) -> str:
    """A time span in its largest unit, such as `12 s` or `3 h`."""
    seconds = max(0, ms // 1000)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
