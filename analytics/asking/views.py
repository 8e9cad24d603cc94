"""The views that people and programs ask: SQL over the lake's tables, with what each column means.

Names and columns are the design's, and only ever grow. The tables themselves lie beside them, in the schema `lake`. Invariant: every
view is there in an empty lake too, with the types that it will have, and all of them show one manifest. Who may ask what is `query`'s.
"""

from __future__ import annotations

import glob
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from analytics.lake import schema
from analytics.lake.manifest import Lake, Manifest

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
    pa.int16(): "SMALLINT",
    pa.binary(): "BLOB",
    pa.list_(pa.string()): "VARCHAR[]",
    pa.list_(pa.float64()): "DOUBLE[]",
}
"""What DuckDB calls the types of `analytics.lake.schema`."""

LEFT_S = 3600.0
"""A draft of a database that is older was left by a process that was killed."""


@dataclass(frozen=True)
class View:
    """One view: what a row is, what its columns mean, and how both follow from the tables and the views before it."""

    doc: str
    columns: dict[str, str]
    sql: str


TASKS = View(
    "A task that the log knows of, submitted or opened; what a duplicate says doesn't count.",
    {
        "task_id": "as it was submitted",
        "num_samples": "how many sessions it has",
        "harness": "by name, or `module:Class`; `external` for sessions that were opened for an agent of one's own",
        "submitted_at": "when the log took it; null where that has left the log before the lake began",
    },
    """
    WITH told AS (
        SELECT task_id, coalesce(num_samples, 1) AS num_samples, coalesce(harness, 'external') AS harness, logged_at
        FROM lake.events
        WHERE fact IN ('task_submitted', 'session_open_requested')
        QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY log_offset) = 1
    ), ended AS (
        SELECT task_id, max(num_samples) AS num_samples, max(harness) AS harness
        FROM lake.trajectories
        GROUP BY task_id
    )
    SELECT
        task_id,
        coalesce(told.num_samples, ended.num_samples) AS num_samples,
        coalesce(told.harness, ended.harness) AS harness,
        told.logged_at AS submitted_at
    FROM told FULL JOIN ended USING (task_id)
    """,
)
CALLS = View(
    "A captured model call, those of lost attempts and those without an answer included.",
    {
        "call_id": "part of the `id` of the answer that the harness got",
        "session_id": "`<task_id>.<sample_index>`",
        "task_id": "the session's task",
        "sample_index": "of the session within its task, from 0",
        "attempt": "of the session, from 1; the last one's calls are its trajectory's",
        "parent_id": "the call whose tokens its prompt extends furthest; until the trajectory is out, the one that shares most "
        "of its prompt; null: none",
        "branch": "`root`, or why it doesn't simply continue its parent (fork, compaction, …); null: it does, has no answer, or the "
        "trajectory isn't out",
        "harness": "the task's",
        "dialect": "the API that the harness spoke: `openai_chat`, …",
        "engine": "the inference server",
        "model_requested": "as the harness asked for it; null: it named none",
        "model_served": "as the engine named it; null: it named none",
        "kind": "`main`, `subagent` or `compaction`, which are trained, or the side call that it is (`title`, `router`, …), which isn't",
        "kind_rule": "the rule that said so; null: main",
        "lineage": "the harness's own session, thread, agent, parent and retry headers, by canonical name; null: it sent none",
        "outcome": "`answered`, `failed`, `abandoned` (the harness hung up), or `disowned`: captured, and never answered",
        "prompt_tokens": "in the whole prompt",
        "shared_tokens": "how many of them are an earlier call's prompt and answer; they are kept once",
        "sampled_tokens": "in the answer",
        "finish_reason": "`stop`, `length`, `tool_calls`, …; null: no answer",
        "policy_version": "of the weights that sampled it, its first token where they changed within it; null: not known",
        "policy_versions": "all of them, in the order of its tokens; empty: not known",
        "error_code": "why there is no answer; null: there is one",
        "received_at": "when the proxy got it",
        "completed_at": "when the engine's answer, or the error, was there",
        "latency_ms": "between these two",
        "realigned": "tokens of the prompt that stand as they were sampled where the engine rendered them otherwise; null: not told",
    },
    """
    WITH first AS (
        SELECT *
        FROM lake.completions
        QUALIFY row_number() OVER (PARTITION BY session_id, call_id ORDER BY log_offset) = 1
    ), disowned AS (
        SELECT call_id, true AS is_disowned FROM lake.disowned GROUP BY call_id
    ), placed AS (
        SELECT call_id, any_value(parent_id) AS parent_id, any_value(branch) AS branch, true AS is_placed
        FROM lake.trajectory_calls
        GROUP BY call_id
    )
    SELECT
        call_id, session_id, task_id, sample_index, attempt,
        CASE WHEN is_placed THEN placed.parent_id ELSE base END AS parent_id,
        branch, harness, dialect, engine, model_requested, model_served, kind, kind_rule, lineage,
        CASE WHEN is_disowned THEN 'disowned' ELSE outcome END AS outcome,
        prompt_tokens, shared_tokens, sampled_tokens, finish_reason, policy_version,
        CASE
            WHEN len(policy_spans) > 0 THEN list_transform(policy_spans, lambda span: span.version)
            WHEN policy_version IS NOT NULL THEN [policy_version]
            ELSE []
        END AS policy_versions,
        error_code, received_at, completed_at,
        epoch_ms(completed_at) - epoch_ms(received_at) AS latency_ms,
        realigned
    FROM first
    LEFT JOIN disowned USING (call_id)
    LEFT JOIN placed USING (call_id)
    LEFT JOIN (SELECT task_id, harness FROM tasks) USING (task_id)
    """,
)
SESSIONS = View(
    "A session, from when its task is known.",
    {
        "session_id": "`<task_id>.<sample_index>`",
        "task_id": "the session's task",
        "sample_index": "within its task, from 0",
        "attempt": "the newest, from 1",
        "harness": "by name, or `module:Class`; `external` for one that was opened for an agent of one's own",
        "status": "`COMPLETED`, `FAILED`, `TIMED_OUT` or `CANCELLED`; null: its trajectory isn't out yet",
        "error_stage": "`init`, `run`, `evaluate`, `build`, or `queue`; null, as the next three: no error",
        "error_kind": "whose fault: `infra`, `agent`, `evaluation`, `budget` or `input`",
        "error_code": "what it was: `exit_code`, `timeout`, `lost`, …",
        "error_message": "in words",
        "reward": "the evaluator's; null: it gave none, or the session hasn't ended",
        "submitted_at": "its task's",
        "ended_at": "when its trajectory was out; null: not yet",
    },
    """
    WITH expected AS (
        SELECT *, task_id || '.' || sample_index AS session_id
        FROM (SELECT task_id, harness, submitted_at, unnest(range(num_samples)) AS sample_index FROM tasks)
    ), newest AS (
        SELECT session_id, max(attempt) AS attempt FROM lake.events WHERE session_id IS NOT NULL GROUP BY session_id
    )
    SELECT
        session_id, expected.task_id, expected.sample_index, coalesce(ended.attempt, newest.attempt, 1) AS attempt,
        coalesce(ended.harness, expected.harness) AS harness, status,
        error_stage, error_kind, error_code, error_message, reward, submitted_at, logged_at AS ended_at
    FROM expected
    LEFT JOIN newest USING (session_id)
    LEFT JOIN lake.trajectories AS ended USING (session_id)
    """,
)
STAGE_TIMES = View(
    "A stage of an attempt that a worker took. Opened sessions have none.",
    {
        "session_id": "`<task_id>.<sample_index>`",
        "task_id": "the session's task",
        "attempt": "from 1",
        "stage": "`init`, `run` or `evaluate`",
        "queued_ms": "from when the stage before had ended, or the task was submitted, until a worker claimed it; null: a later "
        "attempt's `init`, whose beginning no fact tells",
        "run_ms": "what the worker took; null: it hasn't reported, or was lost",
    },
    """
    WITH stages AS (
        SELECT
            session_id, task_id, attempt, stage,
            min(logged_at) FILTER (fact = 'claimed') AS claimed_at,
            min(logged_at) FILTER (fact <> 'claimed') AS finished_at,
            min_by(duration_ms, log_offset) AS run_ms
        FROM lake.events
        WHERE stage IS NOT NULL
        GROUP BY session_id, task_id, attempt, stage
    ), begun AS (
        SELECT session_id, attempt, CASE stage WHEN 'init' THEN 'run' ELSE 'evaluate' END AS stage, finished_at AS begun_at
        FROM stages
        WHERE stage <> 'evaluate'
    )
    SELECT
        session_id, task_id, attempt, stage,
        epoch_ms(claimed_at) - epoch_ms(CASE WHEN stage = 'init' AND attempt = 1 THEN submitted_at ELSE begun_at END) AS queued_ms,
        run_ms
    FROM stages
    LEFT JOIN begun USING (session_id, attempt, stage)
    LEFT JOIN (SELECT task_id, submitted_at FROM tasks) USING (task_id)
    """,
)
TRACES = View(
    "A trainable token sequence of a session: a path through the tree of its tokens.",
    {
        "trace_id": "`<session_id>/<call_id>` of the call that it ends with",
        "session_id": "`<task_id>.<sample_index>`",
        "task_id": "the session's task",
        "tokens": "along the path",
        "trainable_tokens": "of them: sampled by the model, and trained in this trace",
        "calls": "that sampled tokens of the path",
        "kind": "`main`, or the sort of side call that it ends with",
        "reward": "null: none given",
        "finish_reason": "of its last call",
    },
    "SELECT trace_id, session_id, task_id, tokens, trainable_tokens, calls, kind, reward, finish_reason FROM lake.traces",
)
TRAJECTORIES = View(
    "What a session yielded, once it is out.",
    {
        "session_id": "`<task_id>.<sample_index>`",
        "task_id": "the session's task",
        "sample_index": "within its task, from 0",
        "harness": "by name, or `module:Class`; `external` where an agent of one's own ran",
        "status": "`COMPLETED`, `FAILED`, `TIMED_OUT` or `CANCELLED`",
        "reward": "null: no evaluator gave one",
        "traces": "how many",
        "calls": "how many, those without an answer included",
        "answered": "of the calls",
        "tokens": "in the tree, each once",
        "sampled_tokens": "of them",
        "trainable_tokens": "of them",
        "masked_tokens": "sampled and not trainable, by reason",
        "artifacts": "name to blob: the harness's log, the patch, the evaluation's output",
        "metadata": "JSON: the task's",
        "mode": "`train` or `eval`",
    },
    """
    SELECT
        session_id, task_id, sample_index, harness, status, reward, traces, calls, answered, tokens, sampled_tokens, trainable_tokens,
        masked_tokens, artifacts, metadata, mode
    FROM lake.trajectories
    """,
)
GROUPS = View(
    "A task's sessions together: what GRPO normalises rewards over.",
    {
        "task_id": "the task",
        "num_samples": "sessions of the task",
        "harness": "the task's",
        "ended": "of them, how many have their trajectory",
        "mean_reward": "of the rewards that are known; null: none is",
        "std_reward": "their standard deviation, as of a whole population (divided by n): the group is all there is; null as mean_reward",
    },
    """
    SELECT
        task_id, any_value(num_samples) AS num_samples, any_value(tasks.harness) AS harness, count(status) AS ended,
        avg(reward) AS mean_reward, stddev_pop(reward) AS std_reward
    FROM tasks LEFT JOIN sessions USING (task_id)
    GROUP BY task_id
    """,
)
VIEWS = {
    "tasks": TASKS,
    "calls": CALLS,
    "sessions": SESSIONS,
    "stage_times": STAGE_TIMES,
    "traces": TRACES,
    "trajectories": TRAJECTORIES,
    "groups": GROUPS,
}
"""In an order in which each needs only those before it."""


def create(connection: duckdb.DuckDBPyConnection, folder: Path, manifest: Manifest) -> None:
    """Make the tables' views in the schema `lake`, over the very files of this manifest, and the views above."""
    # A view is bound with all that it stands on, each time anew: that costs half as much where files' footers are remembered.
    connection.execute("SET parquet_metadata_cache = true; BEGIN; CREATE SCHEMA lake")
    for table in schema.TABLES.values():
        connection.execute(f"CREATE VIEW lake.{table.name} AS {_rows(table, files(folder, manifest, table.name))}")
    for name, view in VIEWS.items():
        connection.execute(f"CREATE VIEW {name} AS {view.sql}")
    connection.execute("COMMIT")


def files(folder: Path, manifest: Manifest, *tables: str) -> list[str]:
    """Absolute paths of the files of these tables."""
    lake = Lake(folder.absolute())
    return [str(lake.path(table, file)) for table in tables for file in manifest.files.get(table, ())]


def _rows(table: schema.Table, paths: list[str]) -> str:
    """A table's rows. The empty first part gives names and types, also those of columns that no file has yet."""
    columns = ", ".join(f"CAST(NULL AS {TYPES[column.type]}) AS {column.name}" for column in table.columns)
    empty = f"SELECT {columns} WHERE false"
    if not paths:
        return empty
    listed = ", ".join(map(quoted, paths))
    return f"{empty} UNION ALL BY NAME SELECT * FROM read_parquet([{listed}], union_by_name = true)"  # noqa: S608 - quoted


def quoted(text: str) -> str:
    """As an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def write_database(path: Path, folder: Path, manifest: Manifest) -> None:
    """Make or replace a DuckDB file that holds the views of this manifest, for anyone's DuckDB; whole or not at all.

    Who has the old one open keeps it. Raises OSError.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > LEFT_S:
                left.unlink()
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with duckdb.connect(temporary) as connection:
            create(connection, folder, manifest)
        # What someone wrote into the old file and left unmerged doesn't fit the new one.
        path.with_name(f"{path.name}.wal").unlink(missing_ok=True)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def document() -> str:
    """All views as Markdown."""
    return "\n\n".join("\n".join(_section(name, view)) for name, view in VIEWS.items()) + "\n"


def _section(name: str, view: View) -> Iterator[str]:
    yield from (f"### {name}", "", view.doc, "", "| column | |", "|---|---|")
    yield from (f"| `{column}` | {doc} |" for column, doc in view.columns.items())
