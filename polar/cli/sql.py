"""`polar sql`: one query over the lake, as it stands; its answer for people or for programs, all on stdout.

An answer is written as it comes, so that it may be longer than memory; only a table, which people read, ends early and says so.
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
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.measure import Measurement

from polar.cli.exits import Exit, ended
from polar.cli.options import Data
from polar.cli.output import console, note, table
from topics.environment import settings

if TYPE_CHECKING:
    from analytics.asking.query import Reader


class Layout(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


TABLE_ROWS = 500
CELL = 200
"""Characters of a table's cell; a transcript would push all else off the screen."""
ITEMS = 8
"""Of a list in a table's cell."""
_encoder = msgspec.json.Encoder(decimal_format="number")
"""Instants as ISO 8601, bytes as base64, durations as ISO 8601; what is no number (NaN, infinite) as null."""
FAR = 100_000
"""Columns of a screen that any table fits on."""
STOP_S = 5.0
"""For a query to end that was interrupted."""
STOPPED = 128 + signal.SIGINT
NUMBERS = ("BIGINT", "INTEGER", "SMALLINT", "TINYINT", "HUGEINT", "DOUBLE", "FLOAT", "DECIMAL")


def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="SQL", help="DuckDB's SQL, reading only; - reads standard input.")
    ] = None,
    layout: Annotated[Layout, typer.Option("--format", help="For people, or for programs.")] = Layout.TABLE,
    data: Data = None,
) -> None:
    """Ask the lake: calls, sessions, stage_times, traces, trajectories, groups, tasks; the tables are in the schema lake."""
    from analytics.asking import query as lake

    if query is None:
        from analytics.asking.views import VIEWS

        raise ended(
            f"what is the question? `polar sql 'FROM sessions'` asks a view; there are: {', '.join(VIEWS)}",
            Exit.BAD_INPUT,
        )
    with _sigterm_as_ctrl_c(), lake.connect(settings.load(data)) as reader:
        asked = sys.stdin.read() if query == "-" else query
        _interruptible(reader, lambda: WRITERS[layout](reader, asked))


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Both end the query, and take its temporary files and its hold on the lake with them."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interruptible(reader: Reader, work: Callable[[], None]) -> None:
    """Do `work` in another thread: DuckDB doesn't look for signals while it computes, and is told to stop from here."""
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
            # A single call of a function isn't interrupted; Python's own end would wait for it, or complain of what it holds.
            atexit.register(os._exit, STOPPED)
        raise


def _table(reader: Reader, asked: str) -> None:
    """Rows under their columns; where these are too many for the screen, each row as a table of its own."""
    answer = reader.ask(asked)
    rows = answer.rows()
    shown = [[_cell(value) for value in row] for row in itertools.islice(rows, TABLE_ROWS)]
    names = [f">{name}" if kind.startswith(NUMBERS) and "[" not in kind else name for name, kind in answer.columns]
    out, whole = console(), table(names, shown)
    wide = out.options.update(max_width=FAR)
    if Measurement.get(out, wide, whole).maximum <= out.width or len(names) == 1:
        out.print(whole)
    else:
        for number, row in enumerate(shown, start=1):
            out.print(table([f"row {number}", ""], zip((name for name, _ in answer.columns), row, strict=True)), "")
    if next(rows, None) is not None:
        note(f"these are the first {TABLE_ROWS} rows; --format csv, json or parquet gives all")


def _cell(value: object) -> str | None:
    """What a table shows of a value; None stays, for the table to draw."""
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


def _csv(reader: Reader, asked: str) -> None:
    answer = reader.ask(asked)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(name for name, _ in answer.columns)
    writer.writerows([None if value is None else _text(value) for value in row] for row in answer.rows())


def _json(reader: Reader, asked: str) -> None:
    """An array of objects. Of columns with one name the last counts."""
    answer = reader.ask(asked)
    names = [name for name, _ in answer.columns]
    separator = "[\n  "
    for row in answer.rows():
        typer.echo(separator.encode() + _encoder.encode(dict(zip(names, row, strict=True))), nl=False)
        separator = ",\n  "
    typer.echo("[]" if separator.startswith("[") else "\n]")


def _parquet(reader: Reader, asked: str) -> None:
    import pyarrow.parquet as pq

    from polar.cli.parquet import stdout

    out = stdout()
    schema, batches = reader.batches(asked)
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
    """A value in CSV and in tables: as in JSON, and text without its quotes."""
    return value if isinstance(value, str) else _encoder.encode(value).decode().strip('"')
