"""The DuckDB file beside the lake, opened by other DuckDBs than ours: the oldest that docs/sql.md names, and the newest."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analytics.queries import cookbook, views
from tests.analytics.known_run import known_run
from tests.analytics.story import write
from tests.installed import packages

pytestmark = pytest.mark.hard

CHANGING = "What runs now, and for how long"
"""A question whose answer depends on the time of day."""
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import duckdb
connection = duckdb.connect(sys.argv[2], read_only=True)
connection.execute("SET TimeZone = 'UTC'")
def plain(value):
    if isinstance(value, float):
        return round(value, 6)
    return value.isoformat() if hasattr(value, "isoformat") else value
def printed(row):
    return repr([plain(value) for value in row])
answers = [sorted(map(printed, connection.execute(sql).fetchall())) for sql in json.load(sys.stdin)]
json.dump({"version": duckdb.__version__, "answers": answers}, sys.stdout)
"""


def printed(row: tuple[Any, ...]) -> str:
    """A row as PROGRAM prints it: versions differ in the last digits of a quantile and in the class of a time zone."""
    return repr([_plain(value) for value in row])


def _plain(value: object) -> object:
    if isinstance(value, float):
        return round(value, 6)
    return value.isoformat() if isinstance(value, datetime) else value


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    lake = write(folder / "lake", known_run())
    views.write_database(folder / "polar.duckdb", lake.folder, lake.newest())
    return folder / "polar.duckdb"


@pytest.mark.parametrize("pins", ["duckdb_oldest.txt", "duckdb_newest.txt"])
def test_another_duckdb_reads_every_view_and_answers_every_question_as_ours_does(database: Path, pins: str) -> None:
    queries = {name: f"FROM {name}" for name in views.VIEWS}
    queries |= {title: sql for title, sql in cookbook.questions() if title != CHANGING}
    path = Path(__file__).with_name(pins)
    folder = packages(path.stem, path, sys.executable)
    command = [sys.executable, "-I", "-c", PROGRAM, str(folder), str(database)]
    output = subprocess.run(
        command, input=json.dumps(list(queries.values())), capture_output=True, text=True, check=False, timeout=120
    )
    assert output.returncode == 0, output.stderr
    found = json.loads(output.stdout)
    assert f"duckdb=={found['version']}\n" in path.read_text()
    with duckdb.connect(database, read_only=True) as ours:
        ours.execute("SET TimeZone = 'UTC'")
        expected = {name: sorted(map(printed, ours.execute(sql).fetchall())) for name, sql in queries.items()}
    assert dict(zip(queries, found["answers"], strict=True)) == expected
