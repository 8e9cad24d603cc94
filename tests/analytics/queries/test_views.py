"""The views over real files: what they tell of a story that is known, and of nothing at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow.parquet as pq
import pytest

from analytics.lake import schema
from analytics.lake.manifest import EMPTY, File, Lake
from analytics.queries import views
from tests.analytics.story import NOON, call, story, submitted, write, yielded
from topics.completions import RefusedRequest
from topics.environment.settings import Settings
from topics.events import InitFinished, SessionOpenRequested
from topics.types.completion import PolicySpan
from topics.types.errors import Kind, SessionError
from topics.types.session import Status
from topics.types.tokens import pack_logprobs
from topics.types.trajectory import Trajectory
from topics.verifications import Verification

DESIGN = {
    "calls": "call_id, session_id, task_id, attempt, parent_id, dialect, engine, model_requested, model_served, kind, outcome, "
    "prompt_tokens, shared_tokens, sampled_tokens, finish_reason, policy_version, received_at, completed_at, latency_ms",
    "sessions": "session_id, task_id, sample_index, attempt, harness, status, error_code, reward, submitted_at, ended_at, "
    "backend, unenforced, run",
    "stage_times": "session_id, attempt, stage, queued_ms, run_ms",
    "traces": "trace_id, session_id, task_id, tokens, trainable_tokens, calls, kind, reward",
    "trajectories": "session_id, task_id, sample_index, status, reward, traces, calls, trainable_tokens",
    "groups": "task_id, num_samples, ended, mean_reward, std_reward",
}


def opened(lake: Lake, view: str | None = None) -> duckdb.DuckDBPyConnection:
    """A connection with all views, or with this one and what it uses."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    views.create(connection, lake.folder, lake.newest(), views.needed(view) if view else views.EVERY)
    return connection


@pytest.fixture(scope="module")
def told(settings: Settings) -> Iterator[duckdb.DuckDBPyConnection]:
    with opened(Lake(settings.lake_folder)) as connection:
        yield connection


def rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return connection.execute(sql).fetchall()


def columns(connection: duckdb.DuckDBPyConnection, name: str) -> list[tuple[str, str]]:
    return [(column, kind) for column, kind, *_ in rows(connection, f"DESCRIBE {name}")]


@pytest.mark.parametrize("view", DESIGN)
def test_the_designs_columns_are_there_and_answer(told: duckdb.DuckDBPyConnection, view: str) -> None:
    assert rows(told, f"SELECT {DESIGN[view]} FROM {view}")


@pytest.mark.parametrize("view", views.VIEWS)
def test_every_column_is_described_once_in_order(told: duckdb.DuckDBPyConnection, view: str) -> None:
    assert [name for name, _ in columns(told, view)] == list(views.VIEWS[view].columns)


def test_an_empty_lake_has_all_views_with_the_types_that_they_will_have(
    told: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    with opened(Lake(tmp_path)) as empty:
        for name in [*views.VIEWS, *(f"lake.{table}" for table in schema.TABLES)]:
            assert columns(empty, name) == columns(told, name)
            assert rows(empty, f"FROM {name}") == []


def test_a_call_is_told_once_with_its_harness_its_parent_and_how_it_ended(told: duckdb.DuckDBPyConnection) -> None:
    found = rows(
        told,
        "SELECT call_id, harness, parent_id, branch, outcome, kind, prompt_tokens, shared_tokens, sampled_tokens, error_code, latency_ms "
        "FROM calls WHERE session_id = 'mend.1' ORDER BY received_at",
    )
    assert found == [
        ("mend.1-1-0", "pi", None, "root", "answered", "main", 20, 0, 10, None, 500),
        ("mend.1-1-1", "pi", "mend.1-1-0", None, "answered", "main", 50, 30, 10, None, 500),
        ("mend.1-1-2", "pi", None, None, "answered", "title", 20, 0, 10, None, 500),
        # Without a place in a trajectory the parent is the base of its prompt.
        ("mend.1-1-3", "pi", "mend.1-1-1", None, "disowned", "main", 110, 90, 10, None, 500),
        ("mend.1-1-4", "pi", None, None, "failed", "main", 20, 0, 0, "overloaded", 500),
    ]


def test_a_call_tells_all_versions_that_sampled_it_also_from_files_of_an_older_writer(tmp_path: Path) -> None:
    spans = [PolicySpan(7, 0, 4), PolicySpan(8, 4, 10)]
    told: list[dict[str, Any]] = [
        {"policy_spans": spans, "realigned": 3, "publication": 40},
        {},
        {"policy_version": None},
    ]
    calls = [call("mend.0", turn, 5 + turn, **more) for turn, more in enumerate(told)]
    lake = write(tmp_path, [(0, submitted("mend", 1)), *calls])
    asked = "SELECT policy_version, policy_versions, publication, realigned FROM calls ORDER BY received_at"
    with opened(lake) as connection:
        assert rows(connection, asked) == [(7, [7, 8], 40, 3), (7, [7], None, 0), (None, [], None, 0)]
    without_columns(lake, "completions", "policy_spans", "publication", "realigned")
    with opened(lake) as connection:
        assert rows(connection, asked) == [(7, [7], None, None), (7, [7], None, None), (None, [], None, None)]


def test_a_record_that_came_twice_and_a_lost_attempt_are_one_call_each(told: duckdb.DuckDBPyConnection) -> None:
    found = rows(told, "SELECT attempt, count(*) FROM calls WHERE session_id = 'mend.0' GROUP BY 1 ORDER BY 1")
    assert found == [(1, 1), (2, 3)]


def test_instants_are_utc(told: duckdb.DuckDBPyConnection) -> None:
    [(at,)] = rows(told, "SELECT submitted_at FROM tasks WHERE task_id = 'mend'")
    assert at == datetime.fromtimestamp(NOON / 1000, UTC)
    assert at.utcoffset().total_seconds() == 0


def test_sessions_are_there_from_when_their_task_is_known(told: duckdb.DuckDBPyConnection) -> None:
    found = rows(
        told,
        "SELECT session_id, attempt, harness, status, error_code, reward, epoch_ms(ended_at) - epoch_ms(submitted_at) "
        "FROM sessions ORDER BY session_id",
    )
    reasons = "SELECT session_id, reward_reason FROM {} WHERE reward_reason IS NOT NULL"
    for view in ("sessions", "trajectories"):
        assert rows(told, reasons.format(view)) == [("mend.1", "1 of 2 tests differ")]
    assert found == [
        ("mend.0", 2, "pi", "COMPLETED", None, 1.0, 38_000),
        ("mend.1", 1, "pi", "FAILED", "exit_code", 0.0, 18_000),
        ("mend.2", 1, "pi", "TIMED_OUT", "timeout", None, 19_000),
        ("mend.3", 1, "pi", None, None, None, None),
        ("own.0", 1, "external", "COMPLETED", None, 0.5, 10_000),
        ("own.1", 1, "external", None, None, None, None),
        ("parse.0", 1, "shell", "COMPLETED", None, 1.0, 20_000),
        ("parse.1", 1, "shell", "COMPLETED", None, 1.0, 21_000),
    ]


@pytest.mark.parametrize(
    ("client", "harness"),
    [
        ("claude-cli/2.1.329 (external, cli)", "external:claude-cli"),
        ("codex_cli_rs/0.169.0 (Debian 12; x86_64) unknown", "external:codex_cli_rs"),
        ("OpenAI/Python 1.99.0", "external:OpenAI/Python"),
        ("GeminiCLI/v0.9.0/gemini-2.5-pro (linux; x64)", "external:GeminiCLI"),
        ("ai-sdk/openai-compatible/1.0.2 runtime/node.js/22", "external:ai-sdk/openai-compatible"),
        ("node", "external:node"),
        ("/1", "external"),
        (None, "external"),
    ],
)
def test_an_opened_session_has_the_harness_that_its_client_reports(
    tmp_path: Path, client: str | None, harness: str
) -> None:
    """A submitted task keeps its own: what its harness reports, and what a judge does, doesn't rename it."""
    first = call("own.0", 0, 5, client=client)
    later = call("own.0", 1, 6, client="curl/8.5.0" if client else None)
    judged = call("mend.0", 0, 3, client="judge/1", kind="judge"), call("mend.0", 1, 4, client="pi/1")
    lake = write(
        tmp_path,
        [
            (0, SessionOpenRequested("o", "own", "own.0-1-run", 60_000)),
            (1, submitted("mend", 1)),
            *judged,
            first,
            later,
            (9, yielded("own.0", 1, [first, later], Status.COMPLETED, 1.0, harness="external", label="try 2")),
            (9, yielded("mend.0", 1, [judged[1]], Status.COMPLETED, 1.0)),
        ],
    )
    with opened(lake) as connection:
        expected = [("mend.0", "pi", "pi/1", None), ("own.0", harness, client, "try 2")]
        for view in ("sessions", "trajectories"):
            found = rows(connection, f"SELECT session_id, harness, client, label FROM {view} ORDER BY session_id")
            assert found == expected
        by_call = rows(connection, "SELECT harness, client FROM calls WHERE session_id = 'own.0' ORDER BY received_at")
        other = ("external:curl", "curl/8.5.0") if client else ("external", None)
        assert by_call == [(harness, client), other]


def test_a_trajectory_has_the_error_of_its_session(told: duckdb.DuckDBPyConnection) -> None:
    asked = "SELECT session_id, error_stage, error_kind, error_code, error_message FROM {} WHERE error_code IS NOT NULL ORDER BY 1"
    found = rows(told, asked.format("trajectories"))
    assert [row[0] for row in found] == ["mend.1", "mend.2"]
    assert found == rows(told, asked.format("sessions"))


def test_a_session_says_which_runtime_its_attempt_has_and_what_that_does_not_enforce(tmp_path: Path) -> None:
    cell = {"backend": "cell", "id": "1"}
    lake = write(
        tmp_path,
        [
            (0, submitted("mend", 4)),
            (1, InitFinished("a", "mend.0", 1, "a", cell, unenforced=["disk"])),
            (2, InitFinished("b", "mend.0", 2, "b", {"backend": "landlock", "id": "2"}, unenforced=["pids", "disk"])),
            (3, InitFinished("c", "mend.1", 1, "c", cell, unenforced=[])),
            (4, InitFinished("d", "mend.2", 1, "d", cell)),
            (5, InitFinished("d", "mend.2", 1, "d", cell)),  # sent again
            (6, InitFinished("e", "mend.3", 1, "e", cell, unenforced=["disk"])),
            (7, InitFinished("f", "mend.3", 2, "f", error=SessionError("init", Kind.INFRA, "lost", "no disk"))),
        ],
    )
    with opened(lake) as connection:
        found = rows(connection, "SELECT session_id, backend, unenforced FROM sessions ORDER BY session_id")
        assert found == [
            ("mend.0", "landlock", ["pids", "disk"]),
            ("mend.1", "cell", []),
            ("mend.2", "cell", None),
            ("mend.3", None, None),
        ]
    without_columns(lake, "events", "backend", "unenforced")
    with opened(lake) as connection:
        assert rows(connection, "SELECT DISTINCT backend, unenforced FROM sessions") == [(None, None)]


def test_stage_times_tell_of_every_attempt_how_long_it_waited_and_worked(told: duckdb.DuckDBPyConnection) -> None:
    found = rows(
        told,
        "SELECT session_id, attempt, stage, queued_ms, run_ms FROM stage_times WHERE session_id IN ('mend.0', 'mend.3') "
        "ORDER BY session_id, attempt, list_position(['init', 'run', 'evaluate'], stage)",
    )
    assert found == [
        ("mend.0", 1, "init", 1000, 2000),
        ("mend.0", 1, "run", 1000, None),
        ("mend.0", 2, "init", None, 2000),
        ("mend.0", 2, "run", 1000, 10_000),
        ("mend.0", 2, "evaluate", 1000, 3000),
        ("mend.3", 1, "init", 30_000, 3000),
        ("mend.3", 1, "run", 2000, None),
    ]


def test_groups_are_told_while_they_run_and_their_deviation_is_the_populations(told: duckdb.DuckDBPyConnection) -> None:
    found = rows(told, "SELECT task_id, num_samples, ended, mean_reward, std_reward FROM groups ORDER BY task_id")
    assert found == [("mend", 4, 3, 0.5, 0.5), ("own", 2, 1, 0.5, 0.0), ("parse", 2, 2, 1.0, 0.0)]


def test_traces_and_trajectories_are_those_of_the_log(told: duckdb.DuckDBPyConnection) -> None:
    traces = rows(told, "SELECT session_id, tokens, trainable_tokens, calls, reward FROM traces ORDER BY session_id")
    assert traces[0] == ("mend.0", 90, 30, 3, 1.0)
    assert len(traces) == 6
    found = rows(told, "SELECT session_id, calls, trainable_tokens FROM trajectories ORDER BY session_id")
    assert found[:3] == [("mend.0", 3, 30), ("mend.1", 5, 20), ("mend.2", 4, 40)]


def test_a_session_that_ended_twice_since_kafka_was_restored_has_its_newest_end(tmp_path: Path) -> None:
    mend = [record for _, record in story() if isinstance(record, Trajectory) and record.session_id == "mend.1"]
    again = [(3600.0, msgspec.structs.replace(record, reward=0.25)) for record in mend]
    # `run_minutes` and `run_versions` have a row for each time: there the session moves to another one.
    questions = {view: f"SELECT count(*) FROM {view}" for view in views.VIEWS}
    questions |= {view: f"SELECT sum(ended), sum(calls) FROM {view}" for view in ("run_minutes", "run_versions")}
    with opened(write(tmp_path, story())) as connection:
        counts = {view: rows(connection, sql) for view, sql in questions.items()}
    with opened(write(tmp_path / "twice", [*story(), *again])) as connection:
        assert {view: rows(connection, sql) for view, sql in questions.items()} == counts
        for view in ("sessions", "trajectories"):
            assert rows(connection, f"SELECT reward FROM {view} WHERE session_id = 'mend.1'") == [(0.25,)]


def test_a_trace_has_its_newest_verification_in_each_output(tmp_path: Path) -> None:
    first = Verification("t.0", "t.0/a", "large", "http://a", 1, 1, 0.0, 0.5, 0.5, 0.1, 1, pack_logprobs([-1]), 3, 7)
    again = msgspec.structs.replace(first, p99=0.25, largest=0.25)
    rebuilt = msgspec.structs.replace(first, p99=0.0, largest=0.0, publication=None, output="rebuilt")
    with opened(write(tmp_path, [(0, first), (1, rebuilt), (2, again)])) as connection:
        found = rows(connection, "SELECT trace_id, output, publication, p99 FROM verifications ORDER BY p99")
    assert found == [("t.0/a", "rebuilt", None, 0.0), ("t.0/a", None, 7, 0.25)]


def test_refused_requests_are_counted_by_their_rows_and_are_no_calls(tmp_path: Path) -> None:
    records = [
        (1.0 + n, RefusedRequest("t.0", 1, "claim", 1000, "POST", "/foo", 404, "not_found", "no", requests=number))
        for n, number in enumerate((1, 20))
    ]
    with opened(write(tmp_path, records)) as connection:
        found = "SELECT session_id, task_id, path, status, sum(requests) FROM refused_requests GROUP BY ALL"
        assert rows(connection, found) == [("t.0", "t", "/foo", 404, 21)]
        assert rows(connection, "FROM calls") == []


def test_what_a_duplicate_of_a_task_says_does_not_count(tmp_path: Path) -> None:
    lake = write(tmp_path, [(0, submitted("t", 2, "pi")), (1, submitted("t", 9, "shell"))])
    with opened(lake) as connection:
        assert rows(connection, "SELECT task_id, num_samples, harness FROM tasks") == [("t", 2, "pi")]
        assert rows(connection, "SELECT count(*) FROM sessions") == [(2,)]


def test_a_task_whose_submission_has_left_the_log_is_known_by_its_trajectories(tmp_path: Path) -> None:
    lake = write(tmp_path, [one for one in story() if one[1] != submitted("parse", 2, "shell", "night")])
    with opened(lake) as connection:
        found = rows(
            connection,
            "SELECT session_id, harness, submitted_at, reward FROM sessions WHERE task_id = 'parse' ORDER BY 1",
        )
        assert found == [("parse.0", "shell", None, 1.0), ("parse.1", "shell", None, 1.0)]
        assert rows(connection, "SELECT DISTINCT harness, run FROM calls WHERE task_id = 'parse'") == [
            ("shell", "night")
        ]


OF_A_RUN = ("tasks", "sessions", "trajectories", "groups", "calls")
"""Views that a user groups by run."""


@pytest.mark.parametrize("view", OF_A_RUN)
def test_what_belongs_to_a_run_is_found_by_its_name(told: duckdb.DuckDBPyConnection, view: str) -> None:
    assert rows(told, f"SELECT DISTINCT task_id FROM {view} WHERE run = 'night'") == [("parse",)]
    assert rows(told, f"SELECT count(*) FROM {view} WHERE task_id = 'mend' AND run IS NULL") != [(0,)]


def test_files_of_before_there_were_runs_have_none(tmp_path: Path) -> None:
    lake = write(tmp_path, story())
    for table in ("events", "trajectories", "groups"):
        without_columns(lake, table, "run")
    with opened(lake) as connection:
        for view in OF_A_RUN:
            assert rows(connection, f"SELECT DISTINCT run FROM {view}") == [(None,)]


def without_columns(lake: Lake, of: str, *names: str) -> None:
    """Writes a table's only file again as a writer did that didn't know these columns."""
    with lake.writing() as writing:
        newest = lake.newest()
        [old] = newest.files[of]
        older = writing.new_name()
        table = pq.read_table(lake.path(of, old)).drop_columns(list(names))
        pq.write_table(table, lake.folder / of / older)
        lake.commit(newest, newest.replaced(of, [old], [File(older, table.num_rows, 0)]))


def test_files_of_an_older_writer_lack_columns_and_are_read_all_the_same(tmp_path: Path) -> None:
    lake = write(tmp_path, story())
    without_columns(lake, "trajectories", "mode", "artifacts")
    with opened(lake) as connection:
        assert rows(connection, "SELECT DISTINCT mode, artifacts FROM trajectories") == [(None, None)]
        assert len(rows(connection, "FROM sessions WHERE status IS NOT NULL")) == 6


def test_a_database_holds_the_views_for_anyones_duckdb_and_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "it's.duckdb"
    lake = write(tmp_path / "lake", story())
    views.write_database(path, lake.folder, EMPTY)
    with duckdb.connect(path, read_only=True) as before:
        assert before.execute("SELECT count(*) FROM calls").fetchall() == [(0,)]
        views.write_database(path, lake.folder, lake.newest())
        assert before.execute("SELECT count(*) FROM calls").fetchall() == [(0,)]
    with duckdb.connect(path) as after:
        after.execute("CREATE TABLE mine AS SELECT 1; PRAGMA disable_checkpoint_on_shutdown")
        assert after.execute("SELECT count(DISTINCT call_id), count(*) FROM calls").fetchall() == [(19, 19)]
    assert path.with_name(f"{path.name}.wal").exists()
    views.write_database(path, lake.folder, lake.newest())
    with duckdb.connect(path, read_only=True) as again:
        assert [name for (name,) in again.execute("SHOW TABLES").fetchall()] == sorted(views.VIEWS)
    assert {file.name for file in tmp_path.iterdir()} == {"it's.duckdb", "lake"}


def test_what_a_killed_writer_left_of_a_database_goes_when_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "polar.duckdb"
    old, young = tmp_path / ".polar.duckdb.old", tmp_path / ".polar.duckdb.young"
    for file in (old, young):
        file.touch()
    os.utime(old, (0, 0))
    views.write_database(path, tmp_path / "lake", EMPTY)
    assert {file.name for file in tmp_path.iterdir()} == {path.name, young.name}


def test_the_documentation_names_every_view_and_column() -> None:
    page = views.document()
    for name, view in views.VIEWS.items():
        assert f"### {name}\n" in page
        for column in view.columns:
            assert f"| `{column}` |" in page
