"""Runs read-only SQL over one manifest of the lake, for any number of readers.

Invariant: no statement changes anything, reads a file outside the lake, or sees the lake change while it runs. Only statements whose parse
tree contains nothing but reads are run, and DuckDB itself may open only the files of the manifest. `views.py` defines the views.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import duckdb
import msgspec

from analytics.lake import places
from analytics.lake.manifest import Lake, Manifest
from analytics.lake.schema import TABLES
from analytics.queries import views
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError

T = TypeVar("T")
FIELD = "SQL"
MEMORY = "25%"
"""Share of the machine's memory for one query, beside a broker, proxies, harnesses and other readers. DuckDB's default is 80 %."""
SPILL = "4GiB"
"""Disk space in the temporary folder for data that doesn't fit into memory. DuckDB's default is 90 % of the free space."""
READS = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""Parse-tree nodes that only read. A SELECT statement may contain an INSERT or a COPY in its `WITH`."""
RUNS_TEXT = frozenset({"query", "json_execute_serialized_sql"})
"""Functions that run a string as SQL, which would not be checked."""
BY_TEXT = frozenset({"query_table"})
"""Functions whose argument is a table's name, which a query may compute."""
EXPLAIN = re.compile(r"(\s|--[^\n]*\n)*EXPLAIN\s+(ANALYZE\s+)?(\([\w\s,]*\)\s*)?(?=\S)", re.IGNORECASE)
LISTS = re.compile(r"information_schema|duckdb_|pg_|pragma_|sqlite_", re.IGNORECASE)
"""A query that reads a list of what there is."""
OF_ONE = frozenset({"DESCRIBE", "SUMMARY"})
"""Parse-tree sorts of DESCRIBE and SUMMARIZE that name what they describe; SHOW, and DESCRIBE without a name, list what there is."""
ONLY_READS = "only queries are allowed: SELECT, WITH … SELECT, FROM, VALUES, DESCRIBE, SHOW, SUMMARIZE, or EXPLAIN of one of these"
PREFIX = "lake."
"""The tables' schema, at the beginning of their names."""
BATCH = 1024
"""Rows fetched at a time."""
ARROW_BATCH = 65_536


class Names(NamedTuple):
    """Views and tables of a query."""

    used: Set[str]
    listed: Set[str]
    """Those that it needs only to be there."""


class SqlError(InputError):
    """DuckDB's error for a query. DuckDB shows the place, so the message doesn't repeat the query."""

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class Answer:
    """A query's rows, to be read once. Its connection runs no other query meanwhile."""

    def __init__(self, sql: str, cursor: duckdb.DuckDBPyConnection) -> None:
        self._sql = sql
        self._cursor = cursor
        self.columns: list[tuple[str, str]] = [(name, str(kind)) for name, kind, *_ in cursor.description or ()]
        """Names, possibly repeated, and DuckDB's types."""

    def rows(self, batch: int = BATCH) -> Iterator[tuple[Any, ...]]:
        """The rows, with timestamps in UTC, and maps and structs as dicts; `batch` are in memory at once. Raises as `Reader.ask`."""
        with _as_our_errors(self._sql):
            while rows := self._cursor.fetchmany(batch):
                yield from rows


class Reader:
    """Runs queries, one at a time, on the lake as of `manifest`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, lake: Lake, manifest: Manifest) -> None:
        self._connection = connection
        self._lake = lake
        self.manifest = manifest
        self._created: set[str] = set()
        """Names of views and tables that are there. Making all of them takes a third of a second of computing, and a query uses few."""
        self._filled: set[str] = set()
        """The tables with rows. Those of which only names and types were of interest have none: their files may have to be copied."""

    def ask(self, sql: str) -> Answer:
        """Run one query. Raises InputError for anything else and for wrong SQL, NotReadyError if a file of the lake can't be read."""
        with _as_our_errors(sql):
            names = self._check(sql)
            return Answer(sql, self._bound(sql, names, self._connection.execute))

    def batches(self, sql: str) -> tuple[Any, Iterator[Any]]:
        """The answer as a pyarrow Schema and RecordBatches. Raises as `ask`, also while the batches are read."""
        with _as_our_errors(sql):
            names = self._check(sql)
            found = self._bound(sql, names, self._connection.sql).to_arrow_reader(ARROW_BATCH)
            return found.schema, _batches(sql, found)

    def interrupt(self) -> None:
        """End the query of another thread, which raises InputError there."""
        self._connection.interrupt()

    def _bound(self, sql: str, names: Names, run: Callable[[str], T]) -> T:
        """Run a checked query once the views of these names exist."""
        self._create(*names)
        try:
            return run(sql)
        except duckdb.CatalogException:
            # DuckDB proposes a similar name only if it is there.
            self._create(frozenset(), views.EVERY)
            return run(sql)

    def _create(self, used: Set[str], listed: Set[str]) -> None:
        """Create views and tables that aren't there. Those only `listed` have their names and types, but no rows."""
        empty = sorted(name for name in used - self._filled if name.startswith(PREFIX))
        missing = (used | listed) - self._created
        if not (missing or empty):
            return
        tables = [name.removeprefix(PREFIX) for name in empty]
        files = {name: self.manifest.files.get(name, []) for name in tables}
        shown = msgspec.structs.replace(self.manifest, files=files)
        try:
            self._lake.fetch(shown, tables)
            views.create(self._connection, self._lake.folder, shown, missing)
            there = [name for name in tables if PREFIX + name not in missing]
            views.fill(self._connection, self._lake.folder, shown, there)
        except duckdb.InterruptException:
            raise
        except (OSError, duckdb.Error) as error:
            # DuckDB calls a listed file that doesn't exist forbidden.
            paths = views.files(self._lake.folder, shown, *tables)
            gone = next((f"{path} is gone" for path in paths if not Path(path).exists()), None)
            why = error if isinstance(error, OSError) else gone or error
            raise NotReadyError(f"the lake in {self._lake.store.place} can't be read: {why}") from error
        self._created |= missing
        self._filled |= {*empty}

    def _check(self, sql: str) -> Names:
        """Raise InputError unless `sql` is one statement that only reads. Returns the names of views and tables that it uses."""
        try:
            sql.encode()
        except UnicodeEncodeError:
            raise InputError(FIELD, sql, "not valid UTF-8 text") from None
        statements = self._connection.extract_statements(sql)
        if len(statements) != 1:
            raise InputError(FIELD, sql, f"expected one statement, found {len(statements)}")
        try:
            kind = statements[0].type
        except ValueError:  # a type without a name in the Python bindings
            raise InputError(FIELD, sql, ONLY_READS) from None
        if kind is duckdb.StatementType.MULTI:
            raise InputError(FIELD, sql, "a PIVOT must list its values: PIVOT … ON column IN ('a', 'b')")
        explain = EXPLAIN.match(sql)
        if kind is duckdb.StatementType.EXPLAIN and explain is not None:
            return self._check(sql[explain.end() :])
        if kind is not duckdb.StatementType.SELECT:
            raise InputError(FIELD, sql, ONLY_READS)
        return self._check_tree(sql)

    def _check_tree(self, sql: str) -> Names:
        [(serialized,)] = self._connection.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()
        try:
            tree = json.loads(serialized)
        except RecursionError:
            raise InputError(FIELD, sql, "nested too deeply to be checked") from None
        if tree["error"]:
            raise InputError(FIELD, sql, f"{ONLY_READS}; {tree['error_message']}")
        lists, hides = LISTS.search(sql) is not None, False
        for node in _nodes(tree):
            kind, function = str(node.get("type", "")), str(node.get("function_name", "")).lower()
            if kind.endswith("_NODE") and kind not in READS:
                raise InputError(FIELD, sql, ONLY_READS)
            if function in RUNS_TEXT:
                raise InputError(FIELD, sql, f"{function}() runs text as SQL; write that SQL itself")
            lists |= kind == "SHOW_REF" and node.get("show_type") not in OF_ONE
            hides |= function in BY_TEXT
        return Names(views.EVERY if hides else views.needed(sql), views.EVERY if lists else frozenset())


@contextmanager
def connect(settings: Settings) -> Iterator[Reader]:
    """A reader of the newest manifest, whose files are kept while the context lasts. Raises NotReadyError if no lake can be read."""
    lake = places.lake(settings)
    with ExitStack() as stack:
        try:
            manifest = stack.enter_context(lake.pin())
            spill = stack.enter_context(TemporaryDirectory(prefix="polar-sql-"))
            connection = duckdb.connect()
            stack.callback(_close, connection)
            # Each use binds a view and everything below it; caching the files' footers halves that cost.
            connection.execute("SET TimeZone = 'UTC'; SET parquet_metadata_cache = true")
            _lock(connection, views.files(lake.folder, manifest, *TABLES), spill)
        except (OSError, duckdb.Error) as error:
            raise NotReadyError(f"the lake in {lake.store.place} can't be read: {error}") from error
        yield Reader(connection, lake, manifest)


def _close(connection: duckdb.DuckDBPyConnection) -> None:
    # A single function call can't be interrupted: then its thread keeps the connection until the process ends.
    with suppress(duckdb.ResourceInUseException):
        connection.close()


def _lock(connection: duckdb.DuckDBPyConnection, paths: list[str], spill: str) -> None:
    """Restrict the connection for good to these files, folder and sizes. Files are listed, since a folder would be writable, too."""
    listed = ", ".join(map(views.quoted, paths))
    connection.execute(f"SET memory_limit = '{MEMORY}'; SET max_temp_directory_size = '{SPILL}'")
    connection.execute(f"SET temp_directory = {views.quoted(spill)}; SET allowed_paths = [{listed}]")
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects in the tree, in any order."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


@contextmanager
def _as_our_errors(sql: str) -> Iterator[None]:
    """Convert DuckDB's errors into InputError and NotReadyError."""
    try:
        yield
    except duckdb.IOException as error:
        raise NotReadyError(f"the lake can't be read: {error}") from error
    except duckdb.Error as error:
        raise SqlError(FIELD, sql, _reason(error)) from error


def _batches(sql: str, found: Any) -> Iterator[Any]:
    try:
        yield from found
    except OSError as error:  # Arrow's form of an error of DuckDB
        raise SqlError(FIELD, sql, str(error)) from error


def _reason(error: duckdb.Error) -> str:
    """DuckDB's message, with what to do if DuckDB can't know it."""
    message = str(error).strip()
    match error:
        case duckdb.PermissionException():
            return f"{message}\nOnly the lake can be read; its views are: {', '.join(views.VIEWS)}"
        case duckdb.CatalogException() if "Table with name" in message:
            return f"{message}\nThe views are: {', '.join(views.VIEWS)}; the tables: {', '.join(f'lake.{name}' for name in TABLES)}"
        case duckdb.OutOfMemoryException():
            return f"{message}\nAsk for fewer rows, or fewer columns with tokens and messages"
        case _:
            return message
