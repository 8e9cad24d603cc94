"""Results for people: a table on stdout, as wide as the terminal, or as it needs where stdout is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 240


def show(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns; numbers to the right, None as a dash. A column that starts with `>` holds numbers.

    On a narrow terminal the last column is folded first: an id that is cut short names nothing.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        is_last = column == columns[-1]
        table.add_column(column.removeprefix(">"), justify=justify, no_wrap=not is_last, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    console.print(table, markup=False)


def _cell(value: object) -> str:
    match value:
        case None:
            return "–"
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)
