"""The views of texts, tokens, weights, processes and sums, where docs/sql.md's questions don't reach: old files, edges, and one meaning for
each name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from analytics.lake.manifest import EMPTY, Lake
from analytics.queries import cookbook, views
from tests.analytics.known_run import known_run
from tests.analytics.queries.test_views import opened, rows, without_columns
from tests.analytics.story import NOON, call, conversation, submitted, write, yielded
from tests.polar.trainer.trees import trees
from topics.calls.delta import MessageIndex, Spelled, spell
from topics.calls.resolver import Resolver
from topics.completions import Disowned
from topics.events import Claimed, InitFinished, SessionOpenRequested
from topics.fleet import PolicyVersion
from topics.types.completion import CallError, CallOutcome, Completion, MessageDelta, PolicySpan
from topics.types.session import Stage, Status
from topics.types.trajectory import Trajectory, expand
from topics.workers import Heartbeat


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    with opened(write(tmp_path_factory.mktemp("lake"), known_run())) as connection:
        yield connection


PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
"""Each example makes a lake, so shrinking one takes minutes."""
SEVERAL_TYPES = {
    "status": "of a session a word, of a refused request the HTTP status",
    "calls": "a number; no view has the calls themselves",
}
"""Names whose type depends on the view; both are older than the rule."""


def test_a_column_s_name_has_one_type_in_all_views(known: duckdb.DuckDBPyConnection) -> None:
    found: dict[str, set[str]] = {}
    for view in views.VIEWS:
        for name, kind, *_ in rows(known, f"DESCRIBE {view}"):
            found.setdefault(name, set()).add(kind)
    assert {name for name, kinds in found.items() if len(kinds) > 1} <= SEVERAL_TYPES.keys()


def test_no_sum_is_wider_than_the_numbers_that_clients_read(known: duckdb.DuckDBPyConnection) -> None:
    for view in views.VIEWS:
        assert [row for row in rows(known, f"DESCRIBE {view}") if row[1] == "HUGEINT"] == []


TEXTS = st.sampled_from(["a", "b", "c"])


@settings(deadline=None, max_examples=20, phases=PHASES)
@given(st.lists(st.tuples(st.lists(TEXTS, min_size=1, max_size=3), TEXTS, st.integers(0, 6)), min_size=1, max_size=6))
def test_a_call_s_messages_and_those_of_its_bases_are_what_the_harness_sent(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[list[str], str, int]]
) -> None:
    """Each call repeats a number of messages of the one before, adds some, and is stored as the proxy stores it."""
    index, before = MessageIndex(), list[Any]()
    made: list[tuple[float, Completion]] = []
    resolver = Resolver()
    for number, (texts, said, repeated) in enumerate(turns):
        sent = before[:repeated] + [{"role": "user", "content": text} for text in texts]
        answer = {"role": "assistant", "content": said}
        spelled = Spelled(sent)
        one = call("t.0", number, number, messages=index.encode(spelled), answer=spell(answer))
        index.add(one[1].call_id, spelled, answer)
        resolver.add(one[1])
        made.append(one)
        before = [*sent, answer]
    lake = write(tmp_path_factory.mktemp("lake"), [(0, submitted("t", 1)), *made])
    with opened(lake, "messages") as connection:
        found = rows(
            connection,
            "SELECT call_id, base, position, role, content, is_answer FROM messages ORDER BY call_number, position",
        )
    own_rows: dict[str, list[tuple[Any, ...]]] = {}
    whole: dict[str, list[tuple[Any, ...]]] = {}
    for call_id, base, position, *message in found:
        own_rows.setdefault(call_id, []).append((position, *message))
        whole.setdefault(call_id, whole[base][:position] if base else [])
        whole[call_id].append(tuple(message[:2]))
    for _, completion in made:
        expected = [(message["role"], message["content"]) for message in resolver.messages(completion.call_id)]
        assert whole[completion.call_id][:-1] == expected
        assert [is_answer for *_, is_answer in own_rows[completion.call_id]] == [False] * (
            len(own_rows[completion.call_id]) - 1
        ) + [True]


def test_a_message_that_is_no_json_costs_its_own_rows_only(tmp_path: Path) -> None:
    torn = call("t.0", 0, 1, messages=MessageDelta(b"[{"), answer=b"no json")
    with opened(write(tmp_path, [(0, submitted("t", 1)), torn, call("t.0", 1, 2)])) as connection:
        assert rows(connection, "SELECT call_number, role, content FROM messages ORDER BY ALL") == [
            (2, "assistant", "on"),
            (2, "user", "go on"),
        ]


@settings(deadline=None, max_examples=25, phases=PHASES)
@given(trees(updated=True))
def test_the_tokens_of_a_trace_are_those_that_a_trainer_gets(
    tmp_path_factory: pytest.TempPathFactory, trajectory: Trajectory
) -> None:
    with opened(write(tmp_path_factory.mktemp("lake"), [(0, trajectory)]), "tokens") as connection:
        found = rows(
            connection,
            "SELECT trace_id, position, token, trained, reason, logprob, policy_version FROM tokens ORDER BY 1, 2",
        )
    expected: list[tuple[Any, ...]] = []
    for trace in sorted(trajectory.traces, key=lambda one: one.trace_id):
        whole = expand(trajectory, trace)
        versions: dict[int, int | None] = {}
        for span in whole.spans:
            versions |= dict.fromkeys(range(span.start, span.end), span.policy_version)
        of_trace = [row for row in found if row[0] == trace.trace_id]
        assert [row[1] for row in of_trace] == list(range(len(whole.token_ids)))
        expected += [
            (token, bool(trained), logprob if trained else None, versions.get(position))
            for position, (token, trained, logprob) in enumerate(
                zip(whole.token_ids.tolist(), whole.loss_mask.tolist(), whole.logprobs.tolist(), strict=True)
            )
        ]
    assert [(row[2], row[3], row[5] if row[3] else None, row[6] if row[3] else None) for row in found] == expected
    assert all((row[4] is None) == row[3] and (row[4] == "read") == (row[5] is None) for row in found)


def test_traces_that_an_older_writer_wrote_have_no_tokens(tmp_path: Path) -> None:
    lake = write(tmp_path, known_run())
    without_columns(lake, "traces", "path", "starts")
    without_columns(lake, "nodes", "answer_offset")
    with opened(lake) as connection:
        assert rows(connection, "SELECT count(*) FROM tokens") == [(0,)]
        assert rows(connection, "SELECT count(*) FROM drift") == [(0,)]
        # Without the ten tokens of the call in which the weights changed: the version of each isn't known.
        assert rows(connection, "SELECT policy_version, sum(tokens) FROM staleness GROUP BY ALL ORDER BY 1") == [
            (7, 150),
            (8, 6),
        ]


def test_a_sampled_token_says_why_a_trace_does_not_train_it(known: duckdb.DuckDBPyConnection) -> None:
    found = rows(
        known,
        "SELECT reason, count(*) FROM tokens WHERE trace_id = 'talk.0/talk.0-1-2' GROUP BY reason ORDER BY reason",
    )
    assert found == [("filtered_grammar", 4), ("read", 30), (None, 6)]


def test_a_call_continues_its_parent_or_says_why_not(known: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT call_number, parent_number, continues, branch FROM lineage WHERE session_id = '{}' ORDER BY 1"
    assert rows(known, sql.format("talk.0")) == [
        (1, None, False, "root"),
        (2, 1, True, None),
        (3, 1, False, "edited_history"),
    ]
    # Calls that aren't in the trajectory, and one without an answer.
    assert rows(known, sql.format("mend.1"))[2:] == [
        (3, None, None, None),
        (4, 2, None, None),
        (5, None, None, None),
    ]
    assert rows(known, sql.format("mend.3")) == [(1, None, None, None)]


def test_attempts_tell_who_ran_them_and_how_they_ended(known: duckdb.DuckDBPyConnection) -> None:
    found = rows(
        known,
        "SELECT session_id, attempt, status, worker_id, error_stage, error_code, calls FROM attempts "
        "WHERE session_id IN ('mend.0', 'mend.1', 'mend.3', 'own.0', 'torn.0') ORDER BY ALL",
    )
    assert found == [
        ("mend.0", 1, "REPLACED", "worker-0", None, None, 1),
        ("mend.0", 2, "COMPLETED", "worker-1", None, None, 3),
        ("mend.1", 1, "FAILED", "worker-1", "run", "exit_code", 5),
        ("mend.3", 1, None, "worker-1", None, None, 1),
        ("own.0", 1, "COMPLETED", None, None, None, 1),
        ("torn.0", 1, "REPLACED", None, "init", "image", 0),
        ("torn.0", 2, None, "worker-1", None, None, 0),
    ]


def test_the_newest_version_is_that_of_the_engine_or_of_all_whichever_came_later(tmp_path: Path) -> None:
    records: list[tuple[float, object]] = [(0, submitted("t", 4))]
    for number, (at, engine) in enumerate(((10, "a"), (20, "a"), (30, "a"), (30, "b"))):
        calls = conversation(f"t.{number}", at - 5, 1)
        calls = [(when, msgspec.structs.replace(one, engine=engine, policy_version=1)) for when, one in calls]
        records += [*calls, (at, yielded(f"t.{number}", 4, calls, Status.COMPLETED, 1.0))]
    records += [
        (1, PolicyVersion(1)),
        (11, PolicyVersion(2, "a")),
        (21, PolicyVersion(3)),
        (29, PolicyVersion(None, "b")),
    ]
    with opened(write(tmp_path, sorted(records, key=lambda one: one[0]))) as connection:
        sql = "SELECT session_id, engine, policy_version, newest_version, versions_behind FROM staleness ORDER BY 1"
        assert rows(connection, sql) == [
            ("t.0", "a", 1, 1, 0),
            ("t.1", "a", 1, 2, 1),
            ("t.2", "a", 1, 3, 2),
            ("t.3", "b", 1, None, None),
        ]


def test_weights_whose_publication_is_not_in_the_lake_have_a_row(tmp_path: Path) -> None:
    spans = [PolicySpan(3, 0, 4, 17), PolicySpan(4, 4, 10)]
    calls = [
        call("t.0", 0, 1, policy_version=3, publication=17),
        call("t.0", 1, 2, policy_version=3, publication=17, policy_spans=spans),
        call("t.0", 2, 3, policy_version=None),
    ]
    with opened(write(tmp_path, calls)) as connection:
        assert rows(connection, "SELECT * EXCLUDE (engine, is_rollback) FROM policy_versions ORDER BY 1, 2") == [
            (17, 3, None, 2, 14),
            (None, 4, None, 1, 6),
            (None, None, None, 1, 10),
        ]


def test_a_process_has_what_its_last_heartbeat_said(tmp_path: Path) -> None:
    beats = [
        (0, Heartbeat("p", "proxy", "h", 1, address="http://h", obstacle="no engine answers", calls=3)),
        (60, Heartbeat("p", "proxy", "h", 1, address="http://h")),
    ]
    with opened(write(tmp_path, beats)) as connection:
        [found] = rows(
            connection, "SELECT address, obstacle, in_flight, left_at, epoch(last_seen_at - first_seen_at) FROM workers"
        )
    assert found == ("http://h", None, 0, None, 60.0)


def test_a_process_left_when_it_first_said_so_and_is_lost_only_beside_newer_heartbeats(tmp_path: Path) -> None:
    told = [
        (0, Heartbeat("killed", "proxy", "h", 1)),
        (100, Heartbeat("left", "proxy", "h", 2, leaving=True)),
        (200, Heartbeat("left", "proxy", "h", 2, leaving=True)),
        (300, Heartbeat("runs", "proxy", "h", 3)),
    ]
    sql = f"SELECT worker_id, is_lost, epoch_ms(left_at) - {NOON} FROM workers ORDER BY 1"
    with opened(write(tmp_path / "still", told), "workers") as connection:
        assert rows(connection, sql) == [("killed", False, None), ("left", False, 100_000), ("runs", False, None)]
    with opened(write(tmp_path / "later", [*told, (301, Heartbeat("runs", "proxy", "h", 3))]), "workers") as connection:
        assert rows(connection, sql) == [("killed", True, None), ("left", False, 100_000), ("runs", False, None)]


def test_a_call_has_one_outcome_in_all_views(known: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT harness, {} FROM {} GROUP BY ALL HAVING count(*) > 0 ORDER BY 1"
    counted = "count(*) FILTER (outcome <> 'answered')"
    of_calls = rows(known, sql.format(counted, "calls"))
    assert ("pi", 2) in of_calls
    assert of_calls == rows(known, sql.format("any_value(unanswered_calls)", "harness_summary WHERE calls > 0"))
    assert rows(known, "SELECT call_id, outcome FROM calls EXCEPT SELECT call_id, outcome FROM lineage") == []
    assert rows(known, "SELECT call_id, outcome FROM messages EXCEPT SELECT call_id, outcome FROM calls") == []
    [(answered,)] = rows(known, "SELECT count(*) FROM calls WHERE outcome = 'answered'")
    # The weights change within one of the calls.
    assert rows(known, "SELECT sum(calls) FROM policy_versions") == [(answered + 1,)]


def test_the_error_of_a_judge_s_call_is_of_the_evaluation(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"outcome": CallOutcome.FAILED, "sampled": b"", "logprobs": b"", "answer": b""}
    failed = CallError("overloaded", "the engine is busy", 503)
    calls = [call("t.0", turn, turn, kind=kind, error=failed, **fields) for turn, kind in enumerate(["main", "judge"])]
    with opened(write(tmp_path, calls), "errors") as connection:
        assert rows(connection, "SELECT call_id, error_stage FROM errors ORDER BY 1") == [
            ("t.0-1-0", "run"),
            ("t.0-1-1", "evaluate"),
        ]


def _said(*texts: str) -> bytes:
    return msgspec.json.encode([{"role": "user", "content": text} for text in texts])


def test_a_transcript_has_no_message_twice_after_lost_attempts_and_calls(tmp_path: Path) -> None:
    """A call stores what no earlier answered call of its attempt has, so a retry of a failed call sends the same again."""
    lost: dict[str, Any] = {
        "outcome": CallOutcome.FAILED,
        "sampled": b"",
        "logprobs": b"",
        "answer": b"",
        "finish_reason": None,
    }
    calls = [
        call("t.0", 0, 1, messages=MessageDelta(_said("go"))),
        call("t.0", 0, 2, attempt=2, messages=MessageDelta(_said("go")), **lost),
        call("t.0", 1, 3, attempt=2, messages=MessageDelta(_said("go"))),
        call("t.0", 2, 4, attempt=2, messages=MessageDelta(_said("a title?")), kind="title"),
        call("t.0", 3, 5, attempt=2, messages=MessageDelta(_said("more"), 2, "t.0-2-1"), answer=b'{"content": "unheard"}'),
        call("t.0", 4, 6, attempt=2, messages=MessageDelta(b"[]", 3, "t.0-2-3")),
    ]  # fmt: skip
    given_up = (5.5, Disowned("t.0-2-3", "t.0", "t.0-2-run", "hung_up"))
    began = (0.5, Claimed("c", "t.0", 2, Stage.RUN, "t.0-2-run", "w"))
    told = sorted([(0, submitted("t", 1)), began, *calls, given_up], key=lambda one: one[0])
    question = dict(cookbook.questions())["The transcript of one session"].replace("talk.0", "t.0")
    with opened(write(tmp_path, told)) as connection:
        assert [row[:3] for row in rows(connection, question)] == [
            (3, "user", "go"),
            (3, "assistant", "on"),
            (5, "user", "more"),
            (6, "assistant", "on"),
        ]
        every = "SELECT attempt, call_number, outcome FROM messages WHERE content = 'go' ORDER BY ALL"
        assert rows(connection, every) == [(1, 1, "answered"), (2, 2, "failed"), (2, 3, "answered")]


def test_sums_count_each_session_once_whatever_its_calls_clients_are(tmp_path: Path) -> None:
    first = call("own.0", 0, 5, client="claude-cli/2")
    later = call("own.0", 1, 6, client="curl/8")
    records = [(0, SessionOpenRequested("o", "own", "own.0-1-run", 60_000)), first, later]
    with opened(
        write(
            tmp_path,
            [*records, (9, yielded("own.0", 1, [first, later], Status.COMPLETED, 1.0, harness="external"))],
        )
    ) as connection:
        sql = "SELECT harness, tasks, sessions, calls, sampled_tokens, trainable_tokens FROM harness_summary"
        assert rows(connection, sql) == [("external:claude-cli", 1, 1, 2, 20, 20)]


def test_an_attempt_that_began_and_has_no_call_yet_is_there(tmp_path: Path) -> None:
    records = [
        (0, submitted("t", 1)),
        (1, Claimed("c", "t.0", 1, Stage.INIT, "claim", "w")),
        (2, InitFinished("i", "t.0", 1, "claim", {"backend": "cell"})),
    ]
    with opened(write(tmp_path, records)) as connection:
        assert rows(connection, "SELECT attempt, status, backend, calls, sampled_tokens FROM attempts") == [
            (1, None, "cell", 0, 0)
        ]
        assert rows(connection, "SELECT sessions, ended, calls, traces, mean_reward FROM task_summary") == [
            (1, 0, 0, 0, None)
        ]


def test_what_a_query_needs_are_the_views_and_tables_that_its_words_name_and_theirs() -> None:
    assert views.needed("SELECT 1") == set()
    assert views.needed("SELECT min(submitted_at) FROM Tasks") == {"tasks", "lake.events", "lake.trajectories"}
    assert views.needed("FROM groups") >= {"groups", "sessions", "tasks", "lake.groups", "lake.completions"}
    assert "run_summary" not in views.needed("FROM sessions")


@pytest.mark.parametrize("view", views.VIEWS)
def test_a_view_needs_no_more_than_is_named(tmp_path: Path, view: str) -> None:
    with duckdb.connect() as connection:
        views.create(connection, tmp_path, EMPTY, views.needed(f"FROM {view}"))
        assert rows(connection, f"FROM {view}") == []


def test_the_database_of_a_writer_binds_no_view_again(tmp_path: Path) -> None:
    """Its views are those over an empty lake; only the tables under them change."""
    lake = Lake(tmp_path / "none")
    views.write_database(tmp_path / "one.duckdb", lake.folder, lake.newest())
    before = views._empty_database.cache_info().misses
    views.write_database(tmp_path / "two.duckdb", lake.folder, lake.newest())
    assert views._empty_database.cache_info().misses == before == 1
