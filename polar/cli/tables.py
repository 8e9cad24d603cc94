"""Results for people: a table on stdout, as wide as the terminal, or as it needs where stdout is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polar.cli.terminal_text import visible

PIPE_WIDTH = 240


def show(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns; see `table`."""
    console().print(table(columns, rows))


def console() -> Console:
    """Stdout, for people: colours on a terminal alone, and there not where `NO_COLOR` is set."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPE_WIDTH)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Rows under their columns; numbers to the right, None as a dash. A column that starts with `>` holds numbers.

    On a narrow terminal the last column is folded first: an id that is cut short names nothing.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        is_last = column == columns[-1]
        made.add_column(column.removeprefix(">"), justify=justify, no_wrap=not is_last, overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def _cell(value: object) -> Text:
    """As `Text`, whose markup nobody reads: a message may hold what a harness wrote."""
    match value:
        case None:
            return Text("–")
        case Text():
            return value
        case float():
            return Text(f"{value:.4g}")
        case _:
            return Text(visible(str(value)))
