"""The views of tasks, sessions, their calls and their results."""

from __future__ import annotations

from analytics.queries.view import (
    CALL_NUMBER,
    CLIENT,
    CLIENTS,
    ERROR,
    HARNESS,
    LABEL,
    NEWEST,
    NUMBERED_CALLS,
    RUN,
    SESSION,
    View,
    named,
)

TASKS = View(
    "tasks",
    "A submitted or opened task. Duplicate submissions are ignored.",
    {
        "task_id": "the submitted id",
        "num_samples": "number of sessions",
        "harness": "by name, or `module:Class`; `external` for opened sessions, whose agent the user runs",
        "submitted_at": "when Kafka received it; null: retention removed the record before the lake read it",
        "run": RUN,
    },
    """
    WITH told AS (
        SELECT task_id, coalesce(num_samples, 1) AS num_samples, coalesce(harness, 'external') AS harness, logged_at, run
        FROM lake.events
        WHERE fact IN ('task_submitted', 'session_open_requested')
        QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY log_offset) = 1
    ), ended AS (
        SELECT task_id, max(num_samples) AS num_samples, max(harness) AS harness, max(run) AS run
        FROM lake.trajectories
        GROUP BY task_id
    )
    SELECT
        task_id,
        coalesce(told.num_samples, ended.num_samples) AS num_samples,
        coalesce(told.harness, ended.harness) AS harness,
        told.logged_at AS submitted_at,
        coalesce(told.run, ended.run) AS run
    FROM told FULL JOIN ended USING (task_id)
    """,
)
CALLS = View(
    "calls",
    "A captured model call, including calls of lost attempts and calls without an answer.",
    {
        "call_id": "part of the `id` in the answer to the harness",
        **SESSION,
        "sample_index": "of the session within its task, from 0",
        "attempt": "of the session, from 1; the trajectory has the calls of the last attempt",
        "parent_id": "the call with the longest prompt and answer that its prompt continues; until the trajectory exists, the call "
        "that shares most of its prompt; null: none",
        "branch": "`root`, or why it doesn't continue its parent (fork, compaction, …); null if it continues its parent, has no answer, "
        "or its session is unfinished",
        "harness": HARNESS,
        "dialect": "the API that the harness spoke: `openai_chat`, …",
        "engine": "the inference server",
        "model_requested": "the harness's model name; null: none",
        "model_served": "the engine's model name; null: none",
        "kind": "`main`, `subagent` or `compaction`, which are trained, the kind of an untrained side call (`title`, `router`, …), or "
        "`judge`: an evaluator's call, never trained",
        "kind_rule": "the rule that determined the kind; null: main",
        "lineage": "the harness's own session, thread, agent, parent and retry headers, by canonical name; null: it sent none",
        "outcome": "`answered`, `failed`, `abandoned` (the harness hung up), or `disowned`: captured, and never answered",
        "prompt_tokens": "in the whole prompt",
        "shared_tokens": "how many of the prompt tokens belong to an earlier call's prompt and answer, and are stored there",
        "sampled_tokens": "in the answer",
        "finish_reason": "`stop`, `length`, `tool_calls`, …; null: no answer",
        "policy_version": "version of the weights that sampled its first token; null: unknown",
        "policy_versions": "all versions that sampled it, in the order of its tokens; empty: unknown",
        "publication": "offset on `polar.fleet` of the record that published the first token's weights; null: unknown",
        "error_code": "why there is no answer; null: there is one",
        "received_at": "when the proxy received it",
        "completed_at": "when the engine's answer or the error was complete",
        "latency_ms": "from `received_at` to `completed_at`",
        "realigned": "prompt tokens that were kept as sampled although the engine renders them differently; null: not recorded",
        "run": RUN,
        "client": "the client's User-Agent, its name and version; null: it sent none, or an older Polar recorded it",
        "call_number": CALL_NUMBER,
    },
    f"""
    WITH first AS ({NUMBERED_CALLS}), placed AS (
        SELECT call_id, any_value(parent_id) AS parent_id, any_value(branch) AS branch, true AS is_placed
        FROM lake.trajectory_calls
        GROUP BY call_id
    )
    SELECT
        call_id, session_id, task_id, sample_index, attempt,
        CASE WHEN is_placed THEN placed.parent_id ELSE base END AS parent_id,
        branch, {named("harness")} AS harness, dialect, engine, model_requested, model_served, kind, kind_rule, lineage,
        outcome, prompt_tokens, shared_tokens, sampled_tokens, finish_reason, policy_version,
        CASE
            WHEN len(policy_spans) > 0 THEN list_transform(policy_spans, lambda span: span.version)
            WHEN policy_version IS NOT NULL THEN [policy_version]
            ELSE []
        END AS policy_versions,
        publication,
        error_code, received_at, completed_at,
        epoch_ms(completed_at) - epoch_ms(received_at) AS latency_ms,
        realigned, run, client, call_number
    FROM first
    LEFT JOIN placed USING (call_id)
    LEFT JOIN (SELECT task_id, harness, run FROM tasks) USING (task_id)
    """,  # noqa: S608 - our own
)
SESSIONS = View(
    "sessions",
    "A session of a known task.",
    {
        **SESSION,
        "sample_index": "within its task, from 0",
        "attempt": "the newest attempt, from 1",
        "harness": HARNESS,
        "status": "`COMPLETED`, `FAILED`, `TIMED_OUT` or `CANCELLED`; null: it has no trajectory yet",
        **ERROR,
        "reward": "the evaluator's reward; null: none, or the session hasn't ended",
        "reward_reason": "why: the evaluator's words, or for a null reward the error of the evaluation; null: no reason was given",
        "submitted_at": "when its task was submitted",
        "ended_at": "when its trajectory was written; null: not yet",
        "backend": "the kind of runtime of its attempt; null: it has no runtime yet, its init failed, or an older Polar ran it",
        "unenforced": "what that runtime didn't enforce on its host; empty: nothing; null: not reported, and as `backend`",
        "run": RUN,
        "label": LABEL,
        "client": CLIENT,
    },
    f"""
    WITH expected AS (
        SELECT *, task_id || '.' || sample_index AS session_id
        FROM (SELECT task_id, harness, submitted_at, run, unnest(range(num_samples)) AS sample_index FROM tasks)
    ), newest AS (
        SELECT session_id, max(attempt) AS attempt FROM lake.events WHERE session_id IS NOT NULL GROUP BY session_id
    ), runtimes AS (
        SELECT session_id, attempt, backend, unenforced
        FROM lake.events
        WHERE backend IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY session_id, attempt ORDER BY log_offset DESC) = 1
    )
    SELECT
        expected.session_id, expected.task_id, expected.sample_index, coalesce(ended.attempt, newest.attempt, 1) AS attempt,
        {named("coalesce(ended.harness, expected.harness)")} AS harness, status,
        error_stage, error_kind, error_code, error_message, reward, reward_reason, submitted_at, logged_at AS ended_at,
        backend, unenforced, expected.run, label, client
    FROM expected
    LEFT JOIN newest USING (session_id)
    LEFT JOIN (FROM lake.trajectories {NEWEST}) AS ended USING (session_id)
    LEFT JOIN runtimes
        ON runtimes.session_id = expected.session_id AND runtimes.attempt = coalesce(ended.attempt, newest.attempt, 1)
    LEFT JOIN ({CLIENTS}) AS clients ON clients.session_id = expected.session_id
    """,  # noqa: S608 - our own
)
STAGE_TIMES = View(
    "stage_times",
    "A stage of an attempt that a worker claimed. Opened sessions have none.",
    {
        **SESSION,
        "attempt": "from 1",
        "stage": "`init`, `run` or `evaluate`",
        "queued_ms": "time from the end of the previous stage, or from the task's submission, until a worker claimed it; null for "
        "`init` of later attempts, whose beginning isn't recorded",
        "run_ms": "the worker's time; null: it hasn't reported, or was lost",
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
    "traces",
    "A trainable token sequence of a session: a path in its token tree.",
    {
        "trace_id": "`<session_id>/<call_id>` of its last call",
        **SESSION,
        "tokens": "tokens of the path",
        "trainable_tokens": "tokens of the path that the model sampled and this trace trains",
        "calls": "calls that sampled tokens of the path",
        "kind": "`main`, or the kind of side call that it ends with",
        "reward": "null: none",
        "finish_reason": "of its last call",
    },
    f"FROM lake.traces {NEWEST}",
)
TRAJECTORIES = View(
    "trajectories",
    "The result of a finished session.",
    {
        **SESSION,
        "sample_index": "within its task, from 0",
        "harness": HARNESS,
        "status": "`COMPLETED`, `FAILED`, `TIMED_OUT` or `CANCELLED`",
        **ERROR,
        "reward": "null: no evaluator gave one",
        "reward_reason": "why: the evaluator's words, or for a null reward the error of the evaluation; null: no reason was given",
        "traces": "number of traces",
        "calls": "number of calls, including those without an answer",
        "answered": "number of calls with an answer",
        "tokens": "tokens of the tree, each once",
        "sampled_tokens": "of these, sampled by the model",
        "trainable_tokens": "of these, trained",
        "masked_tokens": "sampled tokens that aren't trained, by reason",
        "artifacts": "blobs by name: the harness's log, the patch, the evaluation's output",
        "metadata": "the task's, as JSON",
        "mode": "`train` or `eval`",
        "run": RUN,
        "label": LABEL,
        "client": CLIENT,
    },
    f"""
    SELECT ended.* REPLACE ({named("harness")} AS harness), client
    FROM (FROM lake.trajectories {NEWEST}) AS ended
    LEFT JOIN ({CLIENTS}) USING (session_id)
    """,  # noqa: S608 - our own
)
GROUPS = View(
    "groups",
    "The sessions of one task, over which GRPO normalises rewards.",
    {
        "task_id": "the task",
        "num_samples": "number of sessions",
        "harness": "the task's",
        "ended": "number of sessions with a trajectory",
        "mean_reward": "mean of the known rewards; null: none is known",
        "std_reward": "population standard deviation (divided by n) of the known rewards; null: none is known",
        "run": RUN,
        "zero_variance": "whether two or more rewards are known and all are equal: GRPO learns nothing from them",
    },
    """
    SELECT
        task_id, any_value(num_samples) AS num_samples, any_value(tasks.harness) AS harness, count(status) AS ended,
        avg(reward) AS mean_reward, stddev_pop(reward) AS std_reward, any_value(tasks.run) AS run,
        count(reward) > 1 AND min(reward) = max(reward) AS zero_variance
    FROM tasks LEFT JOIN sessions USING (task_id)
    GROUP BY task_id
    """,
)
VERIFICATIONS = View(
    "verifications",
    "A trace that an engine has scored again (`polar verify`); the newest verification of each trace, engine and output. Differences are "
    "|recorded logprob - scored logprob|, in nats.",
    {
        "trace_id": "as in `traces`",
        **SESSION,
        "engine": "the engine that sampled the tokens",
        "server": "URL of the server that scored them",
        "verified_at": "when",
        "policy_version": "version of the weights that sampled and scored them; null: unknown",
        "publication": "publication of that version (`polar.fleet`); null: unknown",
        "tokens": "tokens that were scored",
        "median": "median difference",
        "p99": "99 of 100 scored tokens differ by no more",
        "largest": "largest difference; 9999: the engine gives a token no probability",
        "limit_nats": "the p99 that was accepted (`--limit`)",
        "over": "scored tokens whose difference is above `limit_nats`",
        "logprobs": "the scored logprob of each token that the trace trains, in order; NaN: not scored",
        "unscored": "the engine's trained tokens of the trace that weren't scored, by reason (docs/vllm.md)",
        "output": "suffix of the trajectories topic that holds the trace; null: the default one",
    },
    """
    FROM lake.verifications
    QUALIFY row_number() OVER (PARTITION BY trace_id, engine, output ORDER BY logged_at DESC, log_offset DESC) = 1
    """,
)
REFUSED_REQUESTS = View(
    "refused_requests",
    "A request with a valid key that the proxy refused, such as one to a wrong path. It is no call. A proxy records the first 20 of a "
    "session's claim, then one each time that their number has doubled.",
    {
        **SESSION,
        "attempt": "of the session, from 1",
        "method": "HTTP method",
        "path": "without key and query, at most 200 characters",
        "status": "HTTP status of the answer",
        "code": "`invalid`, `not_found`, `too_large`, `slow` (its body didn't arrive), `spent` (the session's limits) "
        "or `upgrade` (a WebSocket)",
        "message": "as in the answer, at most 300 characters",
        "client": "the client's User-Agent; null: it sent none",
        "requests": "the requests that this row counts: this one, and those that weren't recorded before it; their sum is at least half of "
        "all that one proxy refused, if it wasn't restarted and no record was lost",
        "refused_at": "when the proxy refused it",
    },
    "FROM lake.refused_requests",
)
