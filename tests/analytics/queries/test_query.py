"""Asking the lake: one manifest, reads only, whatever SQL comes."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import duckdb
import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.lake.manifest import EMPTY, Lake
from analytics.queries import query, views
from analytics.queries.query import Reader, SqlError
from tests.analytics.story import story, submitted, write
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError

CHANGES = [
    "INSERT INTO lake.events VALUES (1)",
    "UPDATE calls SET kind = 'main'",
    "DELETE FROM calls",
    "MERGE INTO calls USING sessions ON true WHEN MATCHED THEN DELETE",
    "TRUNCATE calls",
    "CREATE TABLE mine AS FROM calls",
    "CREATE OR REPLACE VIEW calls AS SELECT 1",
    "CREATE TEMP MACRO m() AS 1",
    "DROP VIEW calls",
    "ALTER VIEW calls RENAME TO mine",
    "COMMENT ON VIEW calls IS 'mine'",
    "COPY calls TO '{new}'",
    "COPY calls TO '{parquet}' (USE_TMP_FILE false)",
    "COPY (SELECT 1) TO '{new}'",
    "EXPORT DATABASE '{new}'",
    "IMPORT DATABASE '{new}'",
    "ATTACH '{new}'",
    "DETACH memory",
    "USE lake",
    "SET threads = 1",
    "SET VARIABLE x = 1",
    "RESET memory_limit",
    "PRAGMA memory_limit = '1GB'",
    "PRAGMA version",
    "CALL pragma_version()",
    "LOAD parquet",
    "INSTALL httpfs",
    "UPDATE EXTENSIONS",
    "BEGIN",
    "CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "WITH x AS (COPY (SELECT 1) TO '{new}') SELECT 1",
    "WITH x AS (COPY (SELECT 1) TO '{parquet}' (USE_TMP_FILE false)) SELECT 1",
    "WITH x AS (INSERT INTO t VALUES (1) RETURNING *) FROM x",
    "SELECT (WITH x AS (COPY (SELECT 1) TO '{new}') SELECT 1)",
    "SELECT 1 WHERE EXISTS (WITH x AS (DELETE FROM t RETURNING *) FROM x)",
    "SELECT 1 UNION ALL (WITH x AS (COPY (SELECT 1) TO '{new}') SELECT 1)",
    "EXPLAIN COPY calls TO '{new}'",
    "EXPLAIN ANALYZE COPY calls TO '{new}'",
    "EXPLAIN (ANALYZE) COPY calls TO '{new}'",
    "EXPLAIN ANALYZE CREATE TABLE mine AS SELECT 1",
    "EXPLAIN ANALYZE WITH x AS (COPY (SELECT 1) TO '{new}') SELECT 1",
    "-- EXPLAIN SELECT 1\nEXPLAIN ANALYZE COPY calls TO '{new}'",
    "DESCRIBE WITH x AS (COPY (SELECT 1) TO '{new}') SELECT 1",
    "SUMMARIZE WITH x AS (COPY (SELECT 1) TO '{new}') SELECT 1",
    "FROM query('SELECT 1')",
    "FROM \"QUERY\"('SELECT 1')",
    "FROM json_execute_serialized_sql('{{}}')",
]
"""What must be refused before it runs; `new` is a file that isn't there, `parquet` one of the lake's."""
READS = [
    "SELECT 1",
    "SELECT * FROM calls;",
    "-- all\nSELECT * FROM calls -- of them",
    "WITH x AS (SELECT 1 AS a) SELECT * FROM x",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t",
    "SELECT 'COPY calls TO ''x''', 'a; b'",
    "FROM sessions",
    "TABLE sessions",
    "VALUES (1)",
    "(SELECT 1) UNION (SELECT 2)",
    "DESCRIBE calls",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "SUMMARIZE trajectories",
    "EXPLAIN SELECT 1",
    "explain analyze select * from calls",
    "-- how?\n EXPLAIN (FORMAT json) SELECT 1",
    "EXPLAIN (ANALYZE, FORMAT json) (SELECT 1)",
    "PIVOT sessions ON status IN ('COMPLETED', 'FAILED') USING count(*) GROUP BY harness",
    "SELECT * FROM sessions PIVOT (count(*) FOR status IN ('COMPLETED'))",
    "SELECT session_id, unnest(sampled) FROM lake.completions",
    "SELECT * FROM query_table('calls')",
]


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below, with its size and when it was written."""
    return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in folder.rglob("*")}


def answer(reader: Reader, sql: str) -> list[tuple[object, ...]]:
    return list(reader.ask(sql).rows())


@pytest.mark.parametrize("sql", READS)
def test_what_only_reads_is_answered(reader: Reader, sql: str) -> None:
    asked = reader.ask(sql)
    assert asked.columns
    assert list(asked.rows())


@pytest.mark.parametrize("sql", CHANGES)
def test_what_changes_anything_is_refused_and_nothing_has_changed(settings: Settings, reader: Reader, sql: str) -> None:
    parquet = next((settings.lake_folder / "completions").iterdir())
    before = tree(settings.data)
    given_sql = sql.format(new=settings.lake_folder / "new.csv", parquet=parquet)
    with pytest.raises(InputError, match=r"only queries are allowed|runs text as SQL|^SQL: Parser Error"):
        reader.ask(given_sql)
    assert tree(settings.data) == before


GLUE = ["WITH x AS (", ")", "EXPLAIN", "ANALYZE", "(", ";", "UNION ALL", "SELECT (", "FROM (", "--", "\n"]


@pytest.fixture(scope="module")
def unlocked() -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB with tables that could be changed: only the guard stands before them, and files can't be reached unnoticed."""
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA lake; CREATE TABLE lake.events (a INT); CREATE TABLE t (a INT)")
        connection.execute("CREATE VIEW calls AS SELECT 1 AS kind")
        connection.execute("CREATE VIEW sessions AS SELECT 'x' AS status, 'y' AS harness")
        connection.execute("SET enable_external_access = false")
        yield connection


@hypothesis.settings(deadline=None)
@given(st.lists(st.sampled_from([*READS, *CHANGES, *GLUE]), min_size=1, max_size=4))
def test_no_mixture_of_statements_changes_anything(unlocked: duckdb.DuckDBPyConnection, parts: list[str]) -> None:
    sql = " ".join(parts).format(new="lake/new", parquet="lake/parquet")
    said = ""
    reader = Reader(unlocked, Lake(Path("lake")), EMPTY)
    reader._created |= views.EVERY
    reader._filled |= views.EVERY
    try:
        list(reader.ask(sql).rows())
    except InputError as error:
        said = str(error)
    assert "file system operations are disabled" not in said, "it has passed the guard, and reached for the disk"
    found = unlocked.execute("SELECT table_name, estimated_size FROM duckdb_tables() ORDER BY 1").fetchall()
    assert found == [("events", 0), ("t", 0)]
    assert unlocked.execute("SELECT current_setting('threads') <> 1, current_database()").fetchall() == [
        (True, "memory")
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_blob('{other}')",
        "SELECT * FROM read_parquet('{other}')",
        "SELECT * FROM '{other}'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM parquet_metadata('{other}')",
        "SELECT getenv('HOME')",
        "SELECT * FROM read_csv('https://example.org/x.csv')",
        "SELECT * FROM duckdb_secrets()",
    ],
)
def test_nothing_but_the_lake_is_read(settings: Settings, reader: Reader, tmp_path: Path, sql: str) -> None:
    other = shutil.copy(next((settings.lake_folder / "completions").iterdir()), tmp_path / "other.parquet")
    with pytest.raises(SqlError, match=r"Only the lake can be read; its views are: tasks, calls|does not exist"):
        reader.ask(sql.format(other=other))


@pytest.mark.parametrize(
    "sql", ["SET threads = 1", "SET enable_external_access = true", "SET allowed_paths = ['/etc/passwd']"]
)
def test_duckdb_itself_is_locked(reader: Reader, sql: str) -> None:
    """Behind the guard, should it ever let such through."""
    with pytest.raises(duckdb.Error, match=r"locked|Cannot change"):
        reader._connection.execute(sql)


def test_a_file_of_the_lake_cant_be_written_anew_beside_it(settings: Settings, reader: Reader) -> None:
    with pytest.raises(duckdb.PermissionException):
        reader._connection.execute(f"COPY (SELECT 1) TO '{settings.lake_folder / 'new.csv'}'".replace("it's", "it''s"))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("", "SQL: expected one statement, found 0 (got '')"),
        ("-- nothing", "expected one statement, found 0"),
        ("SELECT 1; SELECT 2", "SQL: expected one statement, found 2 (got 'SELECT 1; SELECT 2')"),
        ("PIVOT sessions ON status", "a PIVOT must list its values: PIVOT … ON column IN ('a', 'b')"),
        ("SELCT 1", 'SQL: Parser Error: syntax error at or near "SELCT"\n\nLINE 1: SELCT 1\n        ^'),
        ("SELECT harnes FROM calls", 'Candidate bindings: "harness"'),
        ("SELECT * FROM calss", 'Did you mean "calls"?'),
        ("SELECT * FROM nothing_of_that", "The views are: tasks, calls, sessions"),
        ("SELECT * FROM nothing_of_that", "the tables: lake.events, lake.completions"),
        ("SELECT nosuch(1)", "Scalar Function with name nosuch does not exist"),
        ("SELECT $1", "Values were not provided"),
        ("SELECT CAST('x' AS INTEGER)", "Conversion Error"),
        ("SELECT '\udcff'", "not valid UTF-8 text"),
        ("FROM (" * 900 + "SELECT 1" + ")" * 900, "nested too deeply to be checked"),
    ],
)
def test_wrong_sql_is_told_with_duckdbs_words_and_the_place(reader: Reader, sql: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        answer(reader, sql)
    assert said in str(raised.value)


def test_an_error_amid_the_rows_is_told_too(reader: Reader) -> None:
    sql = "SELECT CASE WHEN range > 200000 THEN error('far') ELSE range END FROM range(300000)"
    with pytest.raises(SqlError, match="far"):
        answer(reader, sql)
    with pytest.raises(SqlError, match="far"):
        list(reader.batches(sql)[1])
    with pytest.raises(InputError, match="only queries"):
        reader.batches("COPY calls TO 'x'")


def test_an_answer_that_was_not_read_whole_is_in_nobodys_way(reader: Reader) -> None:
    next(reader.ask("SELECT * FROM range(1000000)").rows())
    assert answer(reader, "SELECT 1") == [(1,)]


def test_a_reader_sees_the_lake_as_it_was_when_it_came(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    lake = write(settings.lake_folder, [(0, submitted("first", 1))])
    count = "SELECT count(*) FROM tasks"
    with query.connect(settings) as before:
        with lake.writing() as writing:
            newest = lake.newest()
            file = writing.new_name()
            [one] = newest.files["events"]
            shutil.copy(lake.path("events", one), lake.folder / "events" / file)
            lake.commit(newest, newest.replaced("events", [one], []))
        assert answer(before, count) == [(1,)]
        with query.connect(settings) as after:
            assert after.manifest.version == before.manifest.version + 1
            assert answer(after, count) == [(0,)]
        assert answer(before, count) == [(1,)]


def test_many_read_at_once(settings: Settings) -> None:
    def read(_: int) -> list[tuple[object, ...]]:
        with query.connect(settings) as reader:
            return answer(reader, "SELECT harness, sum(sampled_tokens) FROM calls GROUP BY 1 ORDER BY 1")

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(read, range(8)))
    assert found == [[("external", 10), ("pi", 130), ("shell", 40)]] * 8


def test_a_long_query_is_interrupted_from_another_thread(reader: Reader) -> None:
    def interrupt() -> None:
        while not over.wait(0.05):
            reader.interrupt()

    over = threading.Event()
    helper = threading.Thread(target=interrupt)
    helper.start()
    try:
        started = time.monotonic()
        with pytest.raises(SqlError, match="Interrupted"):
            answer(reader, "SELECT sum(a.range * b.range) FROM range(100000000) a, range(100000) b")
        assert time.monotonic() - started < 10
    finally:
        over.set()
        helper.join()


def test_instants_are_utc_whatever_the_machine_thinks(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        with query.connect(settings) as reader:
            [(at, hour)] = answer(reader, "SELECT min(submitted_at), hour(min(submitted_at)) FROM tasks")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert isinstance(at, datetime)
    assert str(at.tzinfo) == "UTC"
    assert at.hour == hour


def test_an_empty_lake_answers(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    Lake(settings.lake_folder).prepare()
    with query.connect(settings) as reader:
        assert answer(reader, "SELECT count(*), sum(sampled_tokens) FROM calls") == [(0, None)]


@pytest.mark.parametrize(
    ("spoil", "error_text"),
    [
        (lambda lake, _: shutil.rmtree(lake), r"no lake in .*/lake/polar: .*polar up"),
        (lambda _, file: file.unlink(), r"the lake in .* can't be read: .*{file} is gone"),
        (lambda _, file: file.write_bytes(file.read_bytes()[:500]), r"the lake in .* can't be read: .*{file}"),
    ],
    ids=["no lake", "a file is gone", "a file is damaged"],
)
def test_a_lake_that_cannot_be_read_is_not_the_askers_fault(
    tmp_path: Path, spoil: Callable[[Path, Path], object], error_text: str
) -> None:
    settings = Settings(data=tmp_path)
    lake = write(settings.lake_folder, [(0, submitted("first", 1))])
    [file] = lake.newest().files["events"]
    path = lake.path("events", file)
    spoil(lake.folder, path)
    with pytest.raises(NotReadyError, match=error_text.format(file=path.name)), query.connect(settings) as reader:
        reader.ask("FROM tasks")


def test_a_view_is_there_when_a_query_asks_for_it_whatever_hides_its_name(settings: Settings) -> None:
    for sql in (
        "FROM query_table('ca' || 'lls')",
        "FROM information_schema.tables",
        "SHOW ALL TABLES",
        'FROM "Sessions"',
    ):
        with query.connect(settings) as reader:
            assert answer(reader, sql)
    with query.connect(settings) as reader:
        assert answer(reader, "SELECT count(*) FROM groups") == [(3,)]
        assert answer(reader, "SELECT count(*) FROM lake.verifications") == [(0,)]
        assert answer(reader, "SELECT count(*) FROM run_summary, groups") == [(6,)]


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("DESCRIBE", "workers"),
        ("DESC", "workers"),
        ("DESCRIBE ALL TABLES", "workers"),
        ("DESC ALL TABLES", "workers"),
        ("DESCRIBE TABLES", "workers"),
        ("SHOW TABLES", "workers"),
        ("SHOW ALL TABLES", "workers"),
        ("DESCRIBE TABLES FROM lake", "heartbeats"),
        ("SHOW TABLES FROM lake", "heartbeats"),
        ("FROM (DESCRIBE)", "workers"),
        ("FROM (DESC)", "workers"),
        ("WITH x AS (FROM (DESCRIBE)) FROM x", "workers"),
        ("SELECT table_name FROM information_schema.tables", "workers"),
    ],
)
def test_every_view_is_listed_however_one_asks(settings: Settings, sql: str, name: str) -> None:
    with query.connect(settings) as reader:
        assert any(name in row for row in answer(reader, sql))


def test_a_query_that_lists_nothing_makes_only_its_views(settings: Settings) -> None:
    with query.connect(settings) as reader:
        for sql in ("DESCRIBE refused_requests", "FROM refused_requests ORDER BY refused_at DESC", "SELECT 'show'"):
            answer(reader, sql)
        assert reader._created == {"refused_requests", "lake.refused_requests"}


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spill, settings = tmp_path / "spill", Settings(data=tmp_path / "data")
    spill.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spill))
    lake = write(settings.lake_folder, story())
    before = tree(lake.folder)
    with query.connect(settings) as reader:
        assert list(spill.iterdir())
        with pytest.raises(InputError):
            reader.ask("wrong")
    assert not list(spill.iterdir())
    assert tree(lake.folder).keys() == before.keys()
