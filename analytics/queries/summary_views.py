"""The views that count: attempts, errors, and sums for each harness, task and run."""

from __future__ import annotations

from analytics.queries.view import ERROR, FIRST_CALLS, HARNESS, NEWEST, RUN, SESSION, View

ATTEMPTS = View(
    "attempts",
    "An attempt at a session: all that happened under one number.",
    {
        **SESSION,
        "attempt": "of the session, from 1",
        "status": "the session's, if this attempt gave its trajectory; `REPLACED`: another attempt followed; null: it isn't over",
        "begun_at": "when a worker first claimed a stage of it; null: no worker did, as for opened sessions",
        "worker_id": "the process that ran the harness, as in `workers`; null: none did",
        "backend": "kind of its runtime; null: it has none",
        "exit_code": "the harness's; null: it didn't exit",
        **ERROR,
        "calls": "its calls",
        "sampled_tokens": "tokens that the model sampled in them",
    },
    f"""
    WITH facts AS (
        SELECT
            session_id, any_value(task_id) AS task_id, attempt,
            min(logged_at) FILTER (fact = 'claimed') AS begun_at,
            min_by(worker_id, log_offset) FILTER (fact = 'claimed' AND stage = 'run') AS worker_id,
            min_by(backend, log_offset) AS backend,
            min_by(exit_code, log_offset) AS exit_code,
            min_by(error_stage, log_offset) AS error_stage, min_by(error_kind, log_offset) AS error_kind,
            min_by(error_code, log_offset) AS error_code, min_by(error_message, log_offset) AS error_message
        FROM lake.events
        WHERE attempt IS NOT NULL
        GROUP BY session_id, attempt
    ), called AS (
        SELECT
            session_id, any_value(task_id) AS task_id, attempt, count(*) AS calls,
            CAST(sum(sampled_tokens) AS BIGINT) AS sampled_tokens
        FROM ({FIRST_CALLS})
        GROUP BY session_id, attempt
    ), ended AS (
        SELECT
            session_id, attempt, status, error_stage AS last_stage, error_kind AS last_kind, error_code AS last_code,
            error_message AS last_message
        FROM lake.trajectories {NEWEST}
    ), counted AS (
        SELECT
            session_id, coalesce(facts.task_id, called.task_id) AS task_id, attempt, facts.* EXCLUDE (session_id, task_id, attempt),
            coalesce(calls, 0) AS calls, coalesce(sampled_tokens, 0) AS sampled_tokens
        FROM facts FULL JOIN called USING (session_id, attempt)
    )
    SELECT
        counted.* REPLACE (
            coalesce(last_stage, error_stage) AS error_stage, coalesce(last_kind, error_kind) AS error_kind,
            coalesce(last_code, error_code) AS error_code, coalesce(last_message, error_message) AS error_message
        ),
        CASE
            WHEN ended.status IS NOT NULL THEN ended.status
            WHEN counted.attempt < max(counted.attempt) OVER (PARTITION BY counted.session_id) THEN 'REPLACED'
        END AS status
    FROM counted LEFT JOIN ended ON ended.session_id = counted.session_id AND ended.attempt = counted.attempt
    """,  # noqa: S608 - our own
)
ERRORS = View(
    "errors",
    "An error of a stage, of a session or of a call. A session's error is often that of its last stage, so count one `source`.",
    {
        "source": "`stage`: a worker reported it; `session`: its result; `call`: a model call without an answer",
        "occurred_at": "when: for a stage or a session the time of the record, for a call the end of the call",
        **SESSION,
        "attempt": "of the session, from 1",
        "call_id": "the call; null: the error is no call's",
        **{name: doc.partition(";")[0] for name, doc in ERROR.items()},
    },
    f"""
    SELECT
        'stage' AS source, logged_at AS occurred_at, session_id, task_id, attempt, CAST(NULL AS VARCHAR) AS call_id,
        error_stage, error_kind, error_code, error_message
    FROM (
        FROM lake.events
        WHERE error_code IS NOT NULL AND fact IN ('init_finished', 'run_finished', 'evaluated')
        QUALIFY row_number() OVER (PARTITION BY session_id, fact_id ORDER BY log_offset) = 1
    )
    UNION ALL
    SELECT
        'session', logged_at, session_id, task_id, attempt, NULL, error_stage, error_kind, error_code, error_message
    FROM (FROM lake.trajectories {NEWEST})
    WHERE error_code IS NOT NULL
    UNION ALL
    SELECT
        'call', completed_at, session_id, task_id, attempt, call_id, CASE kind WHEN 'judge' THEN 'evaluate' ELSE 'run' END, NULL,
        error_code, error_message
    FROM ({FIRST_CALLS})
    WHERE error_code IS NOT NULL
    """,  # noqa: S608 - our own
)

COUNTED = {
    "sessions": "number of sessions",
    "ended": "number of sessions with a trajectory; the next four are parts of it",
    "completed": "with status `COMPLETED`",
    "failed": "with status `FAILED`",
    "timed_out": "with status `TIMED_OUT`",
    "cancelled": "with status `CANCELLED`",
    "rewarded": "number of sessions with a reward",
    "mean_reward": "mean of the known rewards; null: none is known",
    "std_reward": "population standard deviation (divided by n) of the known rewards; null: none is known",
    "mean_duration_ms": "mean time from a session's submission to its trajectory; null: none has ended",
    "calls": "number of calls, those of lost attempts included",
    "unanswered_calls": "of these, without an answer that the harness received: their `outcome` in `calls` isn't `answered`",
    "continued_calls": "of the calls in trajectories, those that continue their parent; the others begin a branch",
    "prompt_tokens": "tokens in the prompts of all calls",
    "sampled_tokens": "tokens that the model sampled in all calls",
    "trainable_tokens": "tokens that are trained",
    "traces": "number of traces",
    "submitted_at": "when the first session was submitted; null: unknown",
    "ended_at": "when the last trajectory was written; null: none was",
}
"""Columns that all summaries have."""
OF_SESSIONS = f"""
    SELECT
        sessions.task_id, sessions.session_id, sessions.harness, sessions.run, sessions.status, sessions.reward,
        sessions.submitted_at, sessions.ended_at, calls, unanswered_calls, continued_calls, prompt_tokens, sampled_tokens,
        trainable_tokens, traces
    FROM sessions
    LEFT JOIN (
        SELECT session_id, log_partition, log_offset, trainable_tokens, traces FROM lake.trajectories {NEWEST}
    ) AS newest USING (session_id)
    LEFT JOIN (
        SELECT
            session_id, count(*) AS calls, count(*) FILTER (outcome <> 'answered') AS unanswered_calls,
            sum(prompt_tokens) AS prompt_tokens, sum(sampled_tokens) AS sampled_tokens
        FROM ({FIRST_CALLS})
        GROUP BY session_id
    ) USING (session_id)
    LEFT JOIN (
        SELECT session_id, log_partition, log_offset, count(*) AS continued_calls
        FROM lake.trajectory_calls
        WHERE parent_id IS NOT NULL AND branch IS NULL
        GROUP BY session_id, log_partition, log_offset
    ) USING (session_id, log_partition, log_offset)
"""  # noqa: S608 - our own
COUNTS = """
    count(*) AS sessions, count(status) AS ended,
    count(*) FILTER (status = 'COMPLETED') AS completed, count(*) FILTER (status = 'FAILED') AS failed,
    count(*) FILTER (status = 'TIMED_OUT') AS timed_out, count(*) FILTER (status = 'CANCELLED') AS cancelled,
    count(reward) AS rewarded, avg(reward) AS mean_reward, stddev_pop(reward) AS std_reward,
    avg(epoch_ms(ended_at) - epoch_ms(submitted_at)) AS mean_duration_ms,
    CAST(coalesce(sum(calls), 0) AS BIGINT) AS calls, CAST(coalesce(sum(unanswered_calls), 0) AS BIGINT) AS unanswered_calls,
    CAST(coalesce(sum(continued_calls), 0) AS BIGINT) AS continued_calls,
    CAST(coalesce(sum(prompt_tokens), 0) AS BIGINT) AS prompt_tokens,
    CAST(coalesce(sum(sampled_tokens), 0) AS BIGINT) AS sampled_tokens,
    CAST(coalesce(sum(trainable_tokens), 0) AS BIGINT) AS trainable_tokens,
    CAST(coalesce(sum(traces), 0) AS BIGINT) AS traces,
    min(submitted_at) AS submitted_at, max(ended_at) AS ended_at
"""


def _summary(name: str, doc: str, key: dict[str, str], of_key: str) -> View:
    """A summary for each value of the first column in `key`; `of_key`: SQL for the others."""
    [grouped, *_] = key
    sql = f"SELECT {grouped}, {of_key}, {COUNTS} FROM ({OF_SESSIONS}) GROUP BY {grouped}"  # noqa: S608 - our own
    return View(name, doc, {**key, **COUNTED}, sql)


HARNESS_SUMMARY = _summary(
    "harness_summary",
    "All sessions of one harness.",
    {"harness": HARNESS, "tasks": "number of tasks"},
    "count(DISTINCT task_id) AS tasks",
)
TASK_SUMMARY = _summary(
    "task_summary",
    "All sessions of one task.",
    {
        "task_id": "the task",
        "harness": "of its sessions; if they have several, one of them",
        "run": RUN,
    },
    "min(harness) AS harness, any_value(run) AS run",
)
RUN_SUMMARY = _summary(
    "run_summary",
    "All sessions of one run.",
    {
        "run": "the run (`polar submit --run`); null: the sessions of no run",
        "tasks": "number of tasks",
        "harnesses": "the harnesses of its sessions",
    },
    "count(DISTINCT task_id) AS tasks, list_sort(list(DISTINCT harness)) AS harnesses",
)
