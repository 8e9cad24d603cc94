"""`polar sql`: each form of an answer, and what is said where there is none."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from polar.cli.app import app
from tests.analytics.story import NOON, story, write
from tests.polar.cli.commands import polar
from topics.environment.settings import Settings

pytestmark = pytest.mark.contract

KINDS = """
SELECT * FROM (VALUES
    (1, 2.5::DECIMAL(9, 3), 0.1::DOUBLE, 'a,"b"', [1, 2], MAP {'k': 1}, 'x'::BLOB, true, TIMESTAMPTZ '2026-01-02 03:04:05.678+00'),
    (NULL, NULL, 'nan', NULL, NULL, NULL, NULL, NULL, NULL)
) AS t(whole, exact, float, words, list, map, bytes, flag, instant)
"""
COLUMNS = ["whole", "exact", "float", "words", "list", "map", "bytes", "flag", "instant"]
BUSY_S = 2.0
"""Of CPU: twice what starting takes."""
LONG = "SELECT sum(a.range * b.range) FROM range(100000000) a, range(100000) b"
COMMAND = [sys.executable, "-m", "polar.cli", "sql"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Settings(data=tmp_path_factory.mktemp("data"))
    write(made.lake_folder, story())
    return made.data


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLAR_DATA", str(data))
    monkeypatch.delenv("POLAR_LAKE", raising=False)


def ask(*arguments: str, stdin: str | None = None) -> str:
    code, stdout, stderr = polar("sql", *arguments, stdin=stdin)
    assert (code, stderr) == (0, "")
    return stdout


def refused(*arguments: str) -> tuple[int, str]:
    code, stdout, stderr = polar("sql", *arguments)
    assert stdout == ""
    return code, stderr


def test_a_table_for_people() -> None:
    shown = ask("SELECT harness, count(*) AS n, avg(reward) AS mean FROM sessions GROUP BY 1 ORDER BY 1").splitlines()
    lines = [" ".join(line.split()) for line in shown if "─" not in line]
    assert lines == ["harness n mean", "external 2 0.5", "pi 4 0.5", "shell 2 1"]


def test_every_kind_of_value_in_a_table() -> None:
    header, _, first, second = ask(KINDS).splitlines()
    assert header.split() == COLUMNS
    assert first.split() == [
        "1",
        "2.500",
        "0.1",
        'a,"b"',
        "[1,2]",
        '{"k":1}',
        "eA==",
        "true",
        "2026-01-02",
        "03:04:05.678",
    ]
    assert second.split() == ["–", "–", "nan", *["–"] * 6]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1234567.891", "1234567.891"),
        ("12345.678901::DOUBLE", "12345.6789"),
        ("0.00001234::DOUBLE", "1.234e-05"),
        ("1e300", "1e+300"),
        ("0::DOUBLE", "0"),
        ("range(100)", "[0,1,2,3,4,5,6,7, … 92 more]"),
        ("repeat('x', 300)", "x" * 200 + "… 100 more"),
        ("'a' || chr(27) || '[31mred'", "a\\x1b[31mred"),
    ],
)
def test_values_in_a_table_keep_what_matters(value: str, shown: str) -> None:
    assert ask(f"SELECT {value} AS v").splitlines()[-1].strip() == shown


def test_columns_that_no_screen_holds_are_shown_row_by_row() -> None:
    shown = ask("SELECT * FROM calls WHERE session_id = 'mend.1' ORDER BY received_at LIMIT 2")
    lines = [line.split() for line in shown.splitlines()]
    assert ["row", "1"] in lines
    assert ["row", "2"] in lines
    assert ["call_id", "mend.1-1-0"] in lines
    assert ["latency_ms", "500"] in lines


def test_a_long_table_ends_early_and_says_so() -> None:
    code, stdout, stderr = polar("sql", "SELECT range FROM range(100000)")
    assert (code, len(stdout.splitlines())) == (0, 502)
    assert stderr == "polar: only the first 500 rows; --format csv, json or parquet prints all\n"


def test_csv_has_every_value_whole() -> None:
    header, first, second = csv.reader(io.StringIO(ask(KINDS, "--format", "csv")))
    assert header == COLUMNS
    assert first == ["1", "2.500", "0.1", 'a,"b"', "[1,2]", '{"k":1}', "eA==", "true", "2026-01-02T03:04:05.678000Z"]
    assert second == ["", "", "null", *[""] * 6]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("'=HYPERLINK(\"http://x\")'", '\'=HYPERLINK("http://x")'),
        ("'+1'", "'+1"),
        ("'-2+3'", "'-2+3"),
        ("'@SUM(A1)'", "'@SUM(A1)"),
        ("chr(9) || '=1'", "'\t=1"),
        ("chr(13) || '=1'", "'\\r=1"),
        ("from_hex('fb')", "'+w=="),
        ("'a' || chr(27) || ']0;title' || chr(7)", "a\\x1b]0;title\\x07"),
        ("'two' || chr(10) || 'lines'", "two\nlines"),
        ("-1", "-1"),
        ("-2.5::DECIMAL(4,1)", "-2.5"),
        ("-1e9::DOUBLE", "-1000000000.0"),
        ("'a=b'", "a=b"),
    ],
)
def test_csv_steers_neither_a_spreadsheet_nor_a_terminal(value: str, shown: str) -> None:
    [_, [cell]] = csv.reader(io.StringIO(ask(f"SELECT {value} AS v", "--format", "csv"), newline=""))
    assert cell == shown


def test_a_column_name_steers_neither_a_spreadsheet_nor_a_terminal() -> None:
    query = 'SELECT 1 AS "=cmd|\' /C calc\'!A0", 2 AS "\x1b[31mred\x1b]8;;http://x\x07[bold]"'
    [header, _] = csv.reader(io.StringIO(ask(query, "--format", "csv")))
    assert header == ["'=cmd|' /C calc'!A0", "\\x1b[31mred\\x1b]8;;http://x\\x07[bold]"]
    shown = ask(query).splitlines()[0]
    assert "\x1b" not in shown
    assert "\\x1b[31mred\\x1b]8;;http://x\\x07[bold]" in shown


def test_json_is_an_array_of_objects() -> None:
    first, second = json.loads(ask(KINDS, "--format", "json"))
    values = [1, 2.5, 0.1, 'a,"b"', [1, 2], {"k": 1}, "eA==", True, "2026-01-02T03:04:05.678000Z"]
    assert first == dict(zip(COLUMNS, values, strict=True))
    assert set(second.values()) == {None}


@pytest.mark.parametrize(("layout", "shown"), [("json", "[]\n"), ("csv", "session_id\n")])
def test_no_rows_are_an_answer(layout: str, shown: str) -> None:
    assert ask("SELECT session_id FROM sessions WHERE false", "--format", layout) == shown


def test_more_rows_than_a_batch_are_all_there() -> None:
    assert json.loads(ask("FROM range(5000) r(n)", "--format", "json")) == [{"n": n} for n in range(5000)]
    assert ask("FROM range(5000) r(n)", "--format", "csv").splitlines()[1:] == [str(n) for n in range(5000)]


def test_parquet_keeps_the_types() -> None:
    sql = "SELECT session_id, sampled, received_at FROM lake.completions ORDER BY received_at, call_id"
    result = CliRunner().invoke(app, ["sql", sql, "--format", "parquet"])
    found: Any = pq.read_table(io.BytesIO(result.stdout_bytes))
    name, ids, instant = found.schema.types
    assert (name, ids.value_type, instant.tz) == (pa.string(), pa.int32(), "UTC")
    assert found.num_rows == 20
    assert found["received_at"][0].as_py() == datetime.fromtimestamp(NOON / 1000 + 4.5, UTC)
    empty = CliRunner().invoke(app, ["sql", f"SELECT * FROM ({sql}) WHERE false", "--format", "parquet"])
    assert pq.read_table(io.BytesIO(empty.stdout_bytes)).num_rows == 0


def test_the_question_may_come_from_standard_input() -> None:
    assert ask("-", "--format", "csv", stdin="-- a file\nSELECT 1 AS one;\n") == "one\n1\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["DROP VIEW calls"], "SQL: only queries are allowed: SELECT, WITH"),
        (["DROP VIEW calls"], "(got 'DROP VIEW calls')"),
        (["SELECT 1; SELECT 2"], "SQL: expected one statement, found 2"),
        (["SELECT * FROM calss"], 'Did you mean "calls"?\n\nLINE 1: SELECT * FROM calss\n                      ^'),
        (["SELECT * FROM read_csv('/etc/passwd')"], "Only the lake can be read; its views are: tasks, calls"),
        (["SELECT error('boo')"], "boo"),
        (["SELECT error('boo')", "--format", "parquet"], "boo"),
        ([], "no query given; `polar sql 'FROM sessions'` reads a view; there are: tasks, calls, sessions"),
        (["SELECT 1", "--format", "xml"], "'xml' is not one of"),
    ],
)
def test_a_bad_question_ends_with_2_and_the_way_out(arguments: list[str], said: str) -> None:
    code, stderr = refused(*arguments)
    assert code == 2
    assert said in stderr
    assert "Traceback" not in stderr


def test_no_lake_ends_with_3_and_the_way_out(tmp_path: Path) -> None:
    code, stderr = refused("SELECT 1", "--data", str(tmp_path / "nothing"))
    assert code == 3
    assert f"no lake in {tmp_path / 'nothing' / 'lake' / 'polar'}" in stderr
    assert "polar up" in stderr
    assert "--data" in stderr


def test_parquet_is_not_for_a_terminal() -> None:
    ours, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, "SELECT 1", "--format", "parquet"], stdout=terminal, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(terminal)
        os.close(ours)
    assert done.returncode == 2
    assert b"--format: a terminal can't show Parquet; write it to a file" in done.stderr


def test_who_reads_no_further_than_a_line_breaks_nothing() -> None:
    with subprocess.Popen(
        [*COMMAND, "FROM range(10000000)", "--format", "csv"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"range\n"
        running.stdout.close()
        running.wait(30)
        assert b"Traceback" not in running.stderr.read()


@pytest.mark.parametrize("layout", ["table", "csv", "json", "parquet"])
def test_a_full_disk_is_said(layout: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "FROM range(100000)", "--format", layout], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr.decode().startswith("polar: [Errno 28] No space left on device: the output is incomplete")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_long_query_ends_at_once_when_it_is_told_to(data: Path, tmp_path: Path, number: signal.Signals) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    environment = os.environ | {"TMPDIR": str(spill)}
    with subprocess.Popen([*COMMAND, LONG], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        process = psutil.Process(running.pid)
        while process.cpu_times().user < BUSY_S:
            assert running.poll() is None
            time.sleep(0.02)
        running.send_signal(number)
        stdout, stderr = running.communicate(timeout=30)
    assert running.returncode not in (0, -signal.SIGKILL)
    assert stdout == b""
    assert b"Traceback" not in stderr
    assert list(spill.iterdir()) == []
    assert list((data / "lake" / "polar" / "readers").iterdir()) == []
