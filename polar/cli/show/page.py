"""Prints a story on stdout: headings, lines, blocks of text, tables.

Invariant: everything printed passes `escaped` and goes into `rich.text.Text`, which reads no markup, so no text of a model, tool or harness
controls the terminal. On a terminal text wraps at its width; in a pipe a line stays a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polar.cli import output
from polar.cli.output import escaped, escaped_line

Part = str | tuple[str, str]
"""Text, or text and its rich style."""
LINE = 160
"""Characters that count as one line of a text without line breaks."""
INDENT = 4
ID = "id"
"""The column that a narrow terminal leaves out: its rows also have a number."""


class Page:
    """Prints at once; nothing is buffered."""

    def __init__(self, *, is_full: bool = False, console: Console | None = None) -> None:
        """`is_full`: no text is shortened."""
        self._console = console or output.console()
        self._is_full = is_full

    def heading(self, words: str) -> None:
        self._put(Text())
        self._put(Text(escaped(words), "bold"))

    def line(self, *parts: Part, indent: int = 0) -> None:
        """One line, in parts: a line end in it is escaped."""
        line = Text(no_wrap=False)
        for part in parts:
            words, style = (part, "") if isinstance(part, str) else part
            line.append(escaped_line(words), style or None)
        self._wrapped(line, indent)

    def block(self, text: str, *, indent: int = INDENT, style: str = "") -> None:
        for line in escaped(text).split("\n"):
            self._wrapped(Text(line, style), indent)

    def shortened(self, text: str, lines: int, *, indent: int = INDENT, style: str = "") -> None:
        """At most about `lines` lines of the text: its beginning and end, and between them the size of the omitted part."""
        if self._is_full:
            self.block(text, indent=indent, style=style)
            return
        head, left, tail = shorten(text, lines)
        self.block(head, indent=indent, style=style)
        if left:
            left = left.removeprefix("\n").removesuffix("\n")
            lines_left = left.count("\n") + 1
            count = (
                f"{len(left):,} characters" if lines_left == 1 else f"{lines_left:,} lines, {len(left):,} characters"
            )
            self.line((f"… {count} omitted (--full shows them) …", "dim italic"), indent=indent)
            self.block(tail, indent=indent, style=style)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows under their columns, as `output.table` has them. The first column stays; others without a value are left out, and
        `id`, the last, where a terminal is too narrow for it.
        """
        kept = [list(row) for row in rows]
        shown = [i for i in range(len(columns)) if i == 0 or any(row[i] is not None for row in kept)]
        made = _table(columns, kept, shown)
        if (
            columns[-1] == ID
            and self._console.is_terminal
            and self._console.measure(made).maximum > self._console.width
        ):
            made = _table(columns, kept, shown[:-1])
        self._console.print(made)

    def _wrapped(self, line: Text, indent: int) -> None:
        is_terminal = self._console.is_terminal
        pieces = line.wrap(self._console, max(20, self._console.width - indent)) if is_terminal else [line]
        for piece in pieces:
            self._put(Text(" " * indent).append_text(piece) if piece else piece)

    def _put(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]], shown: Sequence[int]) -> Table:
    return output.table([columns[i] for i in shown], ([row[i] for i in shown] for row in rows))


def shorten(text: str, lines: int) -> tuple[str, str, str]:
    """Beginning, middle and end of the text. The middle may be omitted; it is empty for a short text."""
    if text.count("\n") < lines and len(text) <= lines * LINE:
        return text, "", ""
    ends = lines // 3
    head = "\n".join(text[: (lines - ends) * LINE].split("\n")[: lines - ends])
    tail = "\n".join(text[-ends * LINE :].split("\n")[-ends:])
    return head, text[len(head) : len(text) - len(tail)], tail


def duration(ms: float) -> str:
    """`340 ms`, `12.3 s`, `4 min 12 s`, `1 h 04 min`."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    seconds = round(ms / 1000)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
