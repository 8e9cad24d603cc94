"""`polar sql` runs one query over the lake and prints the answer on stdout, for people or for programs.

The answer is written as it comes, so it may be larger than memory. Only a table, for people, ends early, and a note says so.
"""

from __future__ import annotations

import atexit
import csv
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.measure import Measurement

from polar.cli.exits import Exit, ended
from polar.cli.options import Data
from polar.cli.output import console, escaped, json_line, note, table
from topics.environment import settings

if TYPE_CHECKING:
    from analytics.queries.query import Reader


class Layout(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


TABLE_ROWS = 500
"""Most rows of a table."""
CELL = 200
"""Most characters of a table cell: a transcript would push the other cells off the screen."""
ITEMS = 8
"""Most items of a list in a table cell."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\\r", "\n")
"""Beginnings of cells that a spreadsheet may compute. A carriage return has been escaped to `\\r` by then."""
UNBOUNDED = 100_000
"""Columns of a screen that any table fits on."""
STOP_S = 5.0
"""Time for an interrupted query to end."""
STOPPED = 128 + signal.SIGINT
NUMBERS = ("BIGINT", "INTEGER", "SMALLINT", "TINYINT", "HUGEINT", "DOUBLE", "FLOAT", "DECIMAL")


def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="SQL", help="Read-only DuckDB SQL; - reads standard input.")
    ] = None,
    layout: Annotated[Layout, typer.Option("--format", help="table: for people. Others: for programs.")] = Layout.TABLE,
    data: Data = None,
) -> None:
    """Query the lake: its views, such as sessions, calls, messages, tokens and run_summary, and its tables in the schema lake.

    `polar sql "SHOW TABLES"` lists the views; docs/sql.md has questions to start from.
    """
    from analytics.queries import query as lake

    if query is None:
        from analytics.queries.views import VIEWS

        raise ended(
            f"no query given; `polar sql 'FROM sessions'` reads a view; there are: {', '.join(VIEWS)}", Exit.BAD_INPUT
        )
    with _sigterm_as_ctrl_c(), lake.connect(settings.load(data)) as reader:
        text = sys.stdin.read() if query == "-" else query
        _interruptible(reader, lambda: WRITERS[layout](reader, text))


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM ends the query as Ctrl-C does, and releases its temporary files and its pin of the lake."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interruptible(reader: Reader, work: Callable[[], None]) -> None:
    """Run `work` in another thread: DuckDB ignores signals while it computes, so this thread interrupts it."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="query", daemon=True).start()
    try:
        done.result()
    except KeyboardInterrupt:
        reader.interrupt()
        if wait([done], STOP_S).not_done:
            # DuckDB can't interrupt a single function call, and Python's normal exit would wait for it.
            atexit.register(os._exit, STOPPED)
        raise


def _table(reader: Reader, query: str) -> None:
    """Rows under their columns. If these are too wide for the screen, one table per row."""
    answer = reader.ask(query)
    rows = answer.rows()
    shown = [[_cell(value) for value in row] for row in itertools.islice(rows, TABLE_ROWS)]
    names = [f">{name}" if kind.startswith(NUMBERS) and "[" not in kind else name for name, kind in answer.columns]
    out, whole = console(), table(names, shown)
    wide = out.options.update(max_width=UNBOUNDED)
    if Measurement.get(out, wide, whole).maximum <= out.width or len(names) == 1:
        out.print(whole)
    else:
        for number, row in enumerate(shown, start=1):
            out.print(table([f"row {number}", ""], zip((name for name, _ in answer.columns), row, strict=True)), "")
    if next(rows, None) is not None:
        note(f"only the first {TABLE_ROWS} rows; --format csv, json or parquet prints all")


def _cell(value: object) -> str | None:
    """A value as text for a table. None stays None."""
    match value:
        case None:
            return None
        case float():
            return f"{value:.4f}".rstrip("0").rstrip(".") if 1e-3 <= abs(value) < 1e15 else f"{value:.4g}"
        case datetime():
            return value.isoformat(" ", "milliseconds").removesuffix("+00:00")
        case list() if len(value) > ITEMS:
            return f"{_text(value[:ITEMS])[:-1]}, … {len(value) - ITEMS} more]"
        case _:
            text = _text(value)
            return text if len(text) <= CELL else f"{text[:CELL]}… {len(text) - CELL} more"


def _csv(reader: Reader, query: str) -> None:
    answer = reader.ask(query)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_csv_cell(name) for name, _ in answer.columns)
    writer.writerows([None if value is None else _csv_cell(value) for value in row] for row in answer.rows())


def _csv_cell(value: object) -> str:
    """A value that neither a terminal nor a spreadsheet obeys: agents choose text, and a spreadsheet computes what begins like a formula.

    An apostrophe before it makes it text there (OWASP, CSV injection).
    """
    text = escaped(_text(value))
    is_formula = text.startswith(FORMULA_STARTS) and not isinstance(value, int | float | Decimal)
    return f"'{text}" if is_formula else text


def _json(reader: Reader, query: str) -> None:
    """An array of objects. Of columns with the same name the last counts."""
    answer = reader.ask(query)
    names = [name for name, _ in answer.columns]
    separator = "[\n  "
    for row in answer.rows():
        typer.echo(separator + json_line(dict(zip(names, row, strict=True))), nl=False)
        separator = ",\n  "
    typer.echo("[]" if separator.startswith("[") else "\n]")


def _parquet(reader: Reader, query: str) -> None:
    import pyarrow.parquet as pq

    from polar.cli.parquet import stdout

    out = stdout()
    schema, batches = reader.batches(query)
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)


WRITERS: dict[Layout, Callable[[Reader, str], None]] = {
    Layout.TABLE: _table,
    Layout.CSV: _csv,
    Layout.JSON: _json,
    Layout.PARQUET: _parquet,
}


def _text(value: object) -> str:
    """A value in CSV and tables: as in JSON, but without quotes around text."""
    return value if isinstance(value, str) else json_line(value).strip('"')
