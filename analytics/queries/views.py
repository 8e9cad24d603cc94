"""The public views: SQL over the lake's tables, with the meaning of each column.

Views and columns are only added, never removed. The tables are in the schema `lake`. Invariant: all views show one manifest; in an empty
lake every view exists with its final types. `query.py` restricts queries.
"""

from __future__ import annotations

import functools
import glob
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa

from analytics.lake import schema
from analytics.lake.manifest import EMPTY, Lake, Manifest
from analytics.queries.content_views import DRIFT, LINEAGE, MESSAGES, TOKENS
from analytics.queries.curve_views import RUN_MINUTES, RUN_VERSIONS
from analytics.queries.fleet_views import DEAD_LETTERS, POLICY_VERSIONS, STALENESS, WORKERS
from analytics.queries.session_views import (
    CALLS,
    GROUPS,
    REFUSED_REQUESTS,
    SESSIONS,
    STAGE_TIMES,
    TASKS,
    TRACES,
    TRAJECTORIES,
    VERIFICATIONS,
)
from analytics.queries.summary_views import ATTEMPTS, ERRORS, HARNESS_SUMMARY, RUN_SUMMARY, TASK_SUMMARY
from analytics.queries.view import View

TYPES = {
    schema.TEXT: "VARCHAR",
    schema.INT: "BIGINT",
    schema.FLOAT: "DOUBLE",
    schema.FLAG: "BOOLEAN",
    schema.INSTANT: "TIMESTAMP WITH TIME ZONE",
    schema.IDS: "INTEGER[]",
    schema.LOGPROBS: "FLOAT[]",
    schema.TEXTS: "MAP(VARCHAR, VARCHAR)",
    schema.COUNTS: "MAP(VARCHAR, BIGINT)",
    schema.SPANS: 'STRUCT("version" BIGINT, "start" BIGINT, "end" BIGINT)[]',
    schema.SLOTS: 'STRUCT("stage" VARCHAR, "pool" VARCHAR, "slots" BIGINT, "free" BIGINT)[]',
    pa.int16(): "SMALLINT",
    pa.binary(): "BLOB",
    pa.list_(pa.string()): "VARCHAR[]",
    pa.list_(pa.float64()): "DOUBLE[]",
    pa.list_(schema.INT): "BIGINT[]",
}
"""DuckDB's names of the types of `analytics.lake.schema`."""

STORAGE = "v1.0.0"
"""Form of the DuckDB file: that of DuckDB 1.0, which every later one reads. It holds the views' SQL, which must suit DuckDB 1.1 too."""
STALE_DRAFT_S = 3600.0
"""An older draft of a database was left by a killed process: writing one takes seconds."""

VIEWS = {
    view.name: view
    for view in (
        TASKS,
        CALLS,
        SESSIONS,
        STAGE_TIMES,
        TRACES,
        TRAJECTORIES,
        GROUPS,
        VERIFICATIONS,
        REFUSED_REQUESTS,
        MESSAGES,
        TOKENS,
        LINEAGE,
        DRIFT,
        ATTEMPTS,
        ERRORS,
        POLICY_VERSIONS,
        STALENESS,
        WORKERS,
        DEAD_LETTERS,
        HARNESS_SUMMARY,
        TASK_SUMMARY,
        RUN_SUMMARY,
        RUN_MINUTES,
        RUN_VERSIONS,
    )
}
"""In an order in which each view uses only earlier ones."""


EVERY = frozenset({*VIEWS, *(f"lake.{table}" for table in schema.TABLES)})
"""Names of all views, and of all tables with their schema."""


def create(connection: duckdb.DuckDBPyConnection, folder: Path, manifest: Manifest, names: Set[str] = EVERY) -> None:
    """Create the tables of these names as views in the schema `lake`, over the files of this manifest, and the public views of these names.

    `names` must contain all that these views use, as `needed` gives them, and nothing that was created before.
    """
    connection.execute("BEGIN; CREATE SCHEMA IF NOT EXISTS lake")
    try:
        for table in schema.TABLES.values():
            if f"lake.{table.name}" in names:
                _create_table(connection, table, files(folder, manifest, table.name))
        for view in VIEWS.values():
            if view.name in names:
                columns = ", ".join(view.columns)
                connection.execute(f"CREATE VIEW {view.name} AS SELECT {columns} FROM ({view.sql})")  # noqa: S608 - our own
    except duckdb.Error:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def fill(connection: duckdb.DuckDBPyConnection, folder: Path, manifest: Manifest, tables: Iterable[str]) -> None:
    """Give tables that were created without files those of this manifest."""
    for table in tables:
        _create_table(connection, schema.TABLES[table], files(folder, manifest, table))


def _create_table(connection: duckdb.DuckDBPyConnection, table: schema.Table, paths: list[str]) -> None:
    connection.execute(f"CREATE OR REPLACE VIEW lake.{table.name} AS {_rows(table, paths)}")


def needed(sql: str) -> Set[str]:
    """Names of views and tables that a query may use, with those that these views use."""
    found = _named(sql, VIEWS)
    earlier = list(VIEWS)
    while earlier:
        name = earlier.pop()
        if name in found:
            found |= _named(VIEWS[name].sql, earlier)
    return found


def _named(sql: str, among: Iterable[str]) -> set[str]:
    """The views among these, and the tables, whose names are words of a query."""
    words = set(re.findall(r"\w+", sql.lower()))
    return (words & {*among}) | {f"lake.{table}" for table in words & schema.TABLES.keys()}


def files(folder: Path, manifest: Manifest, *tables: str) -> list[str]:
    """Absolute paths of the tables' files."""
    lake = Lake(folder.absolute())
    return [str(lake.path(table, file)) for table in tables for file in manifest.files.get(table, ())]


def _rows(table: schema.Table, paths: list[str]) -> str:
    """SQL for a table's rows. Its empty first part defines names and types, also of columns that no file has."""
    columns = ", ".join(f"CAST(NULL AS {TYPES[column.type]}) AS {column.name}" for column in table.columns)
    empty = f"SELECT {columns} WHERE false"
    if not paths:
        return empty
    listed = ", ".join(map(quoted, paths))
    return f"{empty} UNION ALL BY NAME SELECT * FROM read_parquet([{listed}], union_by_name = true)"  # noqa: S608 - quoted


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def write_database(path: Path, folder: Path, manifest: Manifest) -> None:
    """Write a DuckDB file with the views of this manifest, for any DuckDB client; the old file is replaced atomically.

    Clients that have opened the old file keep it. Raises OSError.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE_DRAFT_S:
                left.unlink()
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(_empty_database())
        with duckdb.connect(temporary) as connection:
            for table in schema.TABLES.values():
                if paths := files(folder, manifest, table.name):
                    _create_table(connection, table, paths)
        # A write-ahead log of the old file doesn't fit the new one.
        path.with_name(f"{path.name}.wal").unlink(missing_ok=True)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@functools.cache
def _empty_database() -> bytes:
    """A DuckDB file with all views over an empty lake.

    DuckDB binds a view when it is made, and keeps its SQL and types. Binding all of them takes a third of a second of computing, which a
    writer would spend every few seconds.
    """
    with TemporaryDirectory(prefix="polar-views-") as folder:
        path = Path(folder, "empty.duckdb")
        with duckdb.connect() as connection:
            options = f"(STORAGE_VERSION {quoted(STORAGE)})"
            connection.execute(f"ATTACH {quoted(str(path))} AS empty {options}; USE empty")
            create(connection, Path(folder), EMPTY)
            connection.execute("USE memory; DETACH empty")
        return path.read_bytes()


def document() -> str:
    """All views as Markdown."""
    return "\n\n".join("\n".join(_section(view)) for view in VIEWS.values()) + "\n"


def _section(view: View) -> Iterator[str]:
    yield from (f"### {view.name}", "", view.doc, "", "| column | meaning |", "|---|---|")
    yield from (f"| `{column}` | {doc} |" for column, doc in view.columns.items())
