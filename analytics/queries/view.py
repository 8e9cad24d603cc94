"""The form of a view, the meaning of columns that several views have, and SQL that several begin with."""

from __future__ import annotations

from dataclasses import dataclass

NEWEST = "QUALIFY rank() OVER (PARTITION BY session_id ORDER BY logged_at DESC, log_offset DESC) = 1"
"""The rows of a session's newest trajectory: a session ends a second time after Kafka was restored from a copy older than its end."""


@dataclass(frozen=True)
class View:
    """One view: the meaning of a row and of each column, and its SQL over the tables and earlier views."""

    name: str
    doc: str
    columns: dict[str, str]
    sql: str


SESSION = {"session_id": "`<task_id>.<sample_index>`", "task_id": "the session's task"}

RUN = "the task's run (`polar submit --run`); null: of no run, or submitted to an older Polar"

ERROR = {
    "error_stage": "`init`, `run`, `evaluate`, `build`, or `queue`; null, as the next three: no error",
    "error_kind": "the cause: `infra`, `agent`, `evaluation`, `budget` or `input`",
    "error_code": "the error: `exit_code`, `timeout`, `lost`, …",
    "error_message": "the message",
}
CLIENT = "the User-Agent of its first call, the client's name and version; null: none was sent, or an older Polar recorded it"
LABEL = "the user's name for an opened session (`polar session open --label`); null: none, or the session hasn't ended"
HARNESS = (
    "by name, or `module:Class`; for an opened session, whose agent the user runs, `external:` and the name in `client`, or "
    "`external`"
)
CLIENTS = """
    SELECT session_id, min_by(client, log_offset) AS client
    FROM lake.completions
    WHERE client IS NOT NULL AND kind <> 'judge'
    GROUP BY session_id
"""
"""The client of each session: that of its first call."""


def named(harness: str) -> str:
    """SQL for a harness's name. That of opened sessions is `external`, and the User-Agent in `client` says which client it was: its text
    before a version, a space or a bracket."""
    name = r"regexp_extract(client, '^(.*?)(/v?[0-9]|[\s(;]|$)', 1)"
    return f"CASE WHEN {harness} = 'external' AND {name} <> '' THEN 'external:' || {name} ELSE {harness} END"


FIRST_CALLS = """
    SELECT * REPLACE (CASE WHEN call_id IN (SELECT call_id FROM lake.disowned) THEN 'disowned' ELSE outcome END AS outcome)
    FROM lake.completions
    QUALIFY row_number() OVER (PARTITION BY session_id, call_id ORDER BY log_offset) = 1
"""
"""Each call's record once, with its `outcome`: the proxy may have sent it twice, and may have given up on it after that."""
NUMBERED_CALLS = f"""
    SELECT *, row_number() OVER (PARTITION BY session_id ORDER BY log_offset) AS call_number FROM ({FIRST_CALLS})
"""  # noqa: S608 - our own
RUNS = """
    CASE
        WHEN len(policy_spans) > 0 THEN policy_spans
        ELSE [{'version': policy_version, 'start': 0, 'end': 2147483647}]
    END
"""
"""A call's runs of sampled tokens that one version sampled; the end of the last may exceed their number."""
WEIGHTS = f"""
    SELECT
        session_id, log_partition, log_offset, call_id, engine,
        weights.version AS policy_version, weights."start" AS first, weights."end" AS beyond, len(policy_spans) > 0 AS is_part
    FROM (
        SELECT *, unnest({RUNS}) AS weights FROM lake.trajectory_calls
    )
"""  # noqa: S608 - our own
"""`RUNS` of the trajectories' calls, from `first` to before `beyond`. Most calls have one run; `is_part`: the call reports its runs."""
CALL_NUMBER = "of the call within its session, from 1, in the order of the log; calls of lost attempts count also"
