"""Asking the lake: SQL over one manifest, by any number of readers, and nothing but asking.

Invariant: no statement changes anything, reads a file that isn't the lake's, or sees the lake move while it runs. Two things hold that:
only a statement whose parsed tree holds reads alone is run, and DuckDB itself reaches no file but those of the manifest, by name. What
the views mean is `views`'.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from analytics.asking import views
from analytics.lake.manifest import Lake, Manifest
from analytics.lake.schema import TABLES
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReady

FIELD = "SQL"
MEMORY = "25%"
"""Of the machine's, for one query: a broker, proxies and harnesses run beside it, and other readers. DuckDB's own share is 80 %."""
SPILL = "4GiB"
"""On the disk of the temporary folder, for what doesn't fit into memory; DuckDB's own is 90 % of what is free."""
READS = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""Nodes of a parsed query that only read. A `WITH` may hold an INSERT or a COPY, and the statement is a SELECT all the same."""
RUNS_TEXT = frozenset({"query", "json_execute_serialized_sql"})
"""Functions that run a string as SQL, which nobody has looked at."""
EXPLAIN = re.compile(r"(\s|--[^\n]*\n)*EXPLAIN\s+(ANALYZE\s+)?(\([\w\s,]*\)\s*)?(?=\S)", re.IGNORECASE)
ONLY_READS = "only asking is possible: SELECT, WITH … SELECT, FROM, VALUES, DESCRIBE, SHOW, SUMMARIZE, or EXPLAIN of one of these"
BATCH = 1024
"""Rows fetched at a time."""
ARROW_BATCH = 65_536


class WrongSql(InputError):  # noqa: N818 - as NotReady: it says what is
    """What DuckDB has to say about a query: it shows the place, so the query isn't said again."""

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class Answer:
    """A query's rows, to be read once. While it is read, nothing else can be asked of its connection."""

    def __init__(self, sql: str, cursor: duckdb.DuckDBPyConnection) -> None:
        self._sql = sql
        self._cursor = cursor
        self.columns: list[tuple[str, str]] = [(name, str(kind)) for name, kind, *_ in cursor.description or ()]
        """Names, which needn't differ, and DuckDB's types."""

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Instants come with their zone, UTC; maps as dicts, structs too. Raises as `Reader.ask`."""
        with _told(self._sql):
            while rows := self._cursor.fetchmany(BATCH):
                yield from rows


class Reader:
    """One look at the lake, as of `manifest`. One query at a time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, manifest: Manifest) -> None:
        self._connection = connection
        self.manifest = manifest

    def ask(self, sql: str) -> Answer:
        """Raises InputError for what isn't one query or isn't good SQL, NotReady where a file of the lake can't be read."""
        with _told(sql):
            self._check(sql)
            return Answer(sql, self._connection.execute(sql))

    def batches(self, sql: str) -> tuple[Any, Iterator[Any]]:
        """The answer as a pyarrow Schema and RecordBatches. Raises as `ask`, also while these are read."""
        with _told(sql):
            self._check(sql)
            found = self._connection.sql(sql).to_arrow_reader(ARROW_BATCH)
            return found.schema, _batches(sql, found)

    def interrupt(self) -> None:
        """End the query that another thread waits for; it raises InputError there."""
        self._connection.interrupt()

    def _check(self, sql: str) -> None:
        """Raises InputError for all but one statement that only reads."""
        try:
            sql.encode()
        except UnicodeEncodeError:
            raise InputError(FIELD, sql, "this isn't text in UTF-8") from None
        statements = self._connection.extract_statements(sql)
        if len(statements) != 1:
            raise InputError(FIELD, sql, f"expected one statement, found {len(statements)}")
        try:
            kind = statements[0].type
        except ValueError:  # one that the bindings have no name for
            raise InputError(FIELD, sql, ONLY_READS) from None
        if kind is duckdb.StatementType.MULTI:
            raise InputError(FIELD, sql, "a PIVOT must say its values: PIVOT … ON column IN ('a', 'b')")
        explain = EXPLAIN.match(sql)
        if kind is duckdb.StatementType.EXPLAIN and explain is not None:
            self._check(sql[explain.end() :])
        elif kind is not duckdb.StatementType.SELECT:
            raise InputError(FIELD, sql, ONLY_READS)
        else:
            self._check_tree(sql)

    def _check_tree(self, sql: str) -> None:
        [(serialized,)] = self._connection.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()
        try:
            tree = json.loads(serialized)
        except RecursionError:
            raise InputError(FIELD, sql, "queries within queries, too deep to be looked at") from None
        if tree["error"]:
            raise InputError(FIELD, sql, f"{ONLY_READS}; {tree['error_message']}")
        for node in _nodes(tree):
            kind, function = str(node.get("type", "")), str(node.get("function_name", "")).lower()
            if kind.endswith("_NODE") and kind not in READS:
                raise InputError(FIELD, sql, ONLY_READS)
            if function in RUNS_TEXT:
                raise InputError(FIELD, sql, f"{function}() runs text as SQL; write that SQL itself")


@contextmanager
def connect(settings: Settings) -> Iterator[Reader]:
    """Look at the newest manifest; its files stay for as long as this lasts. Raises NotReady where no lake can be read."""
    lake = Lake(settings.lake_folder)
    with ExitStack() as held:
        try:
            manifest = held.enter_context(lake.pin())
            spill = held.enter_context(TemporaryDirectory(prefix="polar-sql-"))
            connection = duckdb.connect()
            held.callback(_close, connection)
            connection.execute("SET TimeZone = 'UTC'")
            views.create(connection, lake.folder, manifest)
            _lock(connection, views.files(lake.folder, manifest, *TABLES), spill)
        except (OSError, duckdb.Error) as error:
            raise NotReady(f"the lake in {lake.folder} can't be read: {error}") from error
        yield Reader(connection, manifest)


def _close(connection: duckdb.DuckDBPyConnection) -> None:
    # Within one call of a function nothing interrupts a query; its thread has the connection then, and ends with the process.
    with suppress(duckdb.ResourceInUseException):
        connection.close()


def _lock(connection: duckdb.DuckDBPyConnection, paths: list[str], spill: str) -> None:
    """From here on: these files, that folder, this much, for good. By name, since what may be read may be written, too."""
    listed = ", ".join(map(views.quoted, paths))
    connection.execute(f"SET memory_limit = '{MEMORY}'; SET max_temp_directory_size = '{SPILL}'")
    connection.execute(f"SET temp_directory = {views.quoted(spill)}; SET allowed_paths = [{listed}]")
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects within, in no order."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


@contextmanager
def _told(sql: str) -> Iterator[None]:
    """DuckDB's errors, as those of who asked."""
    try:
        yield
    except duckdb.IOException as error:
        raise NotReady(f"the lake can't be read: {error}") from error
    except duckdb.Error as error:
        raise WrongSql(FIELD, sql, _reason(error)) from error


def _batches(sql: str, found: Any) -> Iterator[Any]:
    try:
        yield from found
    except OSError as error:  # what DuckDB raises comes through Arrow as this
        raise WrongSql(FIELD, sql, str(error)) from error


def _reason(error: duckdb.Error) -> str:
    """DuckDB's words, and the way out where it can't know it."""
    said = str(error).strip()
    match error:
        case duckdb.PermissionException():
            return f"{said}\nOnly the lake can be read; its views are: {', '.join(views.VIEWS)}"
        case duckdb.CatalogException() if "Table with name" in said:
            return f"{said}\nThe views are: {', '.join(views.VIEWS)}; the tables: {', '.join(f'lake.{name}' for name in TABLES)}"
        case duckdb.OutOfMemoryException():
            return f"{said}\nAsk for fewer rows, or fewer columns with tokens and messages"
        case _:
            return said
