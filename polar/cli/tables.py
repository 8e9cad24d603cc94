"""Results for people: a table on stdout, as wide as the terminal, or as it needs where stdout is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 240


def show(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns; numbers to the right, None as a dash. A column that starts with `>` holds numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
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
