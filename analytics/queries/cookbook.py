"""Questions that people ask of the lake, each with its SQL: those of docs/sql.md and of the page's SQL box.

A test asks each of them of a lake whose answers are known. Ids such as `talk.0` stand for the reader's own.
"""

from __future__ import annotations

from typing import NamedTuple


class Question(NamedTuple):
    """A question and its SQL."""

    title: str
    sql: str
    """One statement, without a semicolon."""
    note: str = ""
    """Markdown: a remark that the answer needs to be understood."""


QUESTIONS = (
    Question(
        "Reward by harness",
        """SELECT harness, sessions, rewarded, mean_reward, std_reward
FROM harness_summary
ORDER BY mean_reward DESC NULLS LAST, harness""",
        "Sessions that you open by hand are a row for each client, such as `external:claude-cli` "
        "([sessions](sessions.md#which-session-it-was)).",
    ),
    Question(
        "How far each run is",
        """SELECT run, tasks, sessions, ended, mean_reward, trainable_tokens, ended_at
FROM run_summary
ORDER BY ended_at DESC""",
        "A run is a name of yours (`polar submit --run`).",
    ),
    Question(
        "How a run goes, version by version",
        """SELECT policy_version, ended, mean_reward, std_reward, zero_variance_share, mean_versions_behind, merge_rate, failures
FROM run_versions
WHERE run = 'day'
ORDER BY published_at, ended_at""",
        "These are the curves that `polar export metrics` writes ([curves.md](curves.md)); `run_minutes` has them by minute.",
    ),
    Question(
        "How each task went",
        """SELECT task_id, sessions, completed, failed, timed_out, mean_reward, sampled_tokens, mean_duration_ms
FROM task_summary
ORDER BY submitted_at""",
    ),
    Question(
        "How sessions ended, and the cause",
        """SELECT status, error_stage, error_kind, error_code, count(*) AS sessions, any_value(error_message) AS for_example
FROM sessions
GROUP BY ALL
ORDER BY sessions DESC, status NULLS FIRST""",
    ),
    Question(
        "What runs now, and for how long",
        """SELECT session_id, attempt, harness, age(now(), submitted_at) AS since
FROM sessions
WHERE status IS NULL
ORDER BY submitted_at""",
    ),
    Question(
        "The transcript of one session",
        """SELECT call_number, role, content, tool_calls
FROM messages JOIN sessions USING (session_id, attempt)
WHERE session_id = 'talk.0' AND kind = 'main' AND (outcome = 'answered' OR outcome = 'disowned' AND NOT is_answer)
ORDER BY call_number, position""",
        "That of its newest attempt, without side calls. Calls without an answer are left out, since their retries send the same messages. "
        "Of a `disowned` call only the answer is: its messages stand nowhere else.",
    ),
    Question(
        "The whole conversation of one call",
        """WITH RECURSIVE of_session AS (
  SELECT call_id, call_number, any_value(base) AS base, min(position) AS first
  FROM messages
  WHERE session_id = 'talk.0'
  GROUP BY call_id, call_number
), parts AS (
  SELECT call_id, base, first, 1000000 AS beyond FROM of_session WHERE call_number = 3
  UNION ALL
  SELECT of_session.call_id, of_session.base, of_session.first, least(parts.first, parts.beyond)
  FROM parts JOIN of_session ON of_session.call_id = parts.base
)
SELECT position, role, content, tool_calls
FROM messages JOIN parts USING (call_id)
WHERE session_id = 'talk.0' AND position < beyond
ORDER BY position""",
        "What the model read before its third answer, and that answer: messages that earlier calls sent are put before the call's own.",
    ),
    Question(
        "Sessions in which something was said",
        """SELECT session_id, count(*) AS messages, min(call_number) AS first_call
FROM messages
WHERE content ILIKE '%tests pass%'
GROUP BY session_id
ORDER BY session_id""",
    ),
    Question(
        "Tools that agents call",
        """SELECT harness, tool ->> '$.function.name' AS tool, count(*) AS times
FROM (SELECT session_id, unnest(json_extract(tool_calls, '$[*]')) AS tool FROM messages WHERE is_answer)
JOIN sessions USING (session_id)
GROUP BY ALL
ORDER BY times DESC, tool""",
    ),
    Question(
        "Calls and tokens of each session",
        """SELECT session_id, count(*) AS calls, sum(sampled_tokens) AS sampled, sum(prompt_tokens) AS prompts,
  sum(shared_tokens) / sum(prompt_tokens) AS shared
FROM calls
GROUP BY session_id
ORDER BY sampled DESC, session_id""",
        "`prompt_tokens` counts the whole prompt of every call, as the engine reads it; `shared_tokens` of them repeat an earlier call.",
    ),
    Question(
        "The calls of one session, in order",
        """SELECT call_number, attempt, kind, outcome, prompt_tokens, sampled_tokens, latency_ms, parent_id, call_id
FROM calls
WHERE session_id = 'mend.1'
ORDER BY call_number""",
    ),
    Question(
        "Calls besides the main work, and their cost",
        """SELECT harness, kind, count(*) AS calls, sum(sampled_tokens) AS sampled, avg(latency_ms) AS ms
FROM calls
WHERE kind <> 'main'
GROUP BY harness, kind
ORDER BY calls DESC""",
        "These are sub-agents, compactions, side calls such as titles, and evaluators' judges.",
    ),
    Question(
        "Calls without an answer, and calls whose answer nobody received",
        """SELECT outcome, error_code, count(*) AS calls, max(received_at) AS last
FROM calls
WHERE outcome <> 'answered'
GROUP BY outcome, error_code
ORDER BY outcome""",
    ),
    Question(
        "How calls were sampled",
        """SELECT engine, logprobs_mode, plain, coalesce(sampling ->> '$.grammar_source', 'unknown') AS grammar_source,
  count(*) AS calls, sum(sampled_tokens) AS sampled
FROM lake.trajectory_calls
GROUP BY ALL
ORDER BY calls DESC""",
        "[ratios.md](ratios.md) explains the columns; `plain` is null for calls from an older Polar.",
    ),
    Question(
        "How much of the work is one conversation",
        """SELECT harness, calls, continued_calls, traces, continued_calls / calls AS merged
FROM harness_summary
ORDER BY merged""",
        "Calls that continue their parent share its trace. The fewer do, the more often a trainer reads the same tokens.",
    ),
    Question(
        "Where conversations branch, and why",
        """SELECT harness, branch, count(*) AS calls, any_value(session_id) AS for_example
FROM lineage JOIN sessions USING (session_id)
WHERE NOT continues AND branch <> 'root'
GROUP BY harness, branch
ORDER BY calls DESC""",
    ),
    Question(
        "Slow stages: waiting time and working time",
        """SELECT stage, count(*) AS times, quantile_cont(queued_ms, 0.5) AS queued, quantile_cont(queued_ms, 0.95) AS queued_95,
  quantile_cont(run_ms, 0.5) AS ran, quantile_cont(run_ms, 0.95) AS ran_95
FROM stage_times
GROUP BY stage
ORDER BY stage""",
    ),
    Question(
        "Speed of the engine by minute",
        """SELECT date_trunc('minute', completed_at) AS minute, engine, count(*) AS calls, sum(sampled_tokens) AS sampled,
  quantile_cont(latency_ms, 0.95) AS ms_95
FROM calls
WHERE outcome = 'answered'
GROUP BY minute, engine
ORDER BY minute DESC
LIMIT 60""",
    ),
    Question(
        "Groups that teach nothing, since all their rewards are equal",
        """SELECT task_id, ended, mean_reward
FROM groups
WHERE ended = num_samples AND std_reward = 0
ORDER BY task_id""",
    ),
    Question(
        "GRPO's advantage of each sample",
        """SELECT session_id, reward, (reward - mean_reward) / nullif(std_reward, 0) AS advantage
FROM sessions JOIN groups USING (task_id)
WHERE reward IS NOT NULL
ORDER BY session_id""",
        "`std_reward` divides by n, because the group is the whole population; `stddev_samp(reward)` over `sessions` divides by n - 1, as "
        "some trainers do.",
    ),
    Question(
        "Reward by a field of the task's metadata",
        """SELECT metadata ->> '$.repository' AS repository, count(*) AS sessions, avg(reward) AS mean_reward
FROM trajectories
GROUP BY repository
ORDER BY repository""",
    ),
    Question(
        "Sampled tokens that can't be trained, by reason",
        """SELECT reason.key AS reason, sum(reason.value) AS tokens
FROM (SELECT unnest(map_entries(masked_tokens)) AS reason FROM trajectories)
GROUP BY ALL
ORDER BY tokens DESC, reason""",
    ),
    Question(
        "The tokens of one trace",
        """SELECT position, token, trained, reason, logprob, policy_version
FROM tokens
WHERE trace_id = 'talk.0/talk.0-1-1'
ORDER BY position""",
    ),
    Question(
        "How sure the model is, by version",
        """SELECT policy_version, count(*) AS tokens, avg(logprob) AS mean_logprob, exp(-avg(logprob)) AS perplexity
FROM tokens
WHERE trained
GROUP BY policy_version
ORDER BY policy_version""",
    ),
    Question(
        "The least likely tokens that are trained",
        """SELECT session_id, trace_id, position, token, logprob
FROM tokens
WHERE trained
ORDER BY logprob, session_id, position
LIMIT 3""",
    ),
    Question(
        "Which weights were published, and what they sampled",
        """SELECT publication, policy_version, engine, is_rollback, calls, sampled_tokens
FROM policy_versions
ORDER BY publication""",
    ),
    Question(
        "How stale trained tokens were at delivery",
        """SELECT versions_behind, count(DISTINCT session_id) AS sessions, sum(tokens) AS tokens
FROM staleness
GROUP BY versions_behind
ORDER BY versions_behind""",
    ),
    Question(
        "Recorded logprobs against those of a second reading",
        """SELECT engine, policy_version, traces, tokens, mean_difference, p99, largest, mean_log_ratio
FROM drift
ORDER BY engine, policy_version""",
        "`polar verify` scores traces again ([vllm.md](vllm.md#finished-traces-scored-again)).",
    ),
    Question(
        "Traces that an engine scored otherwise",
        """SELECT trace_id, engine, tokens, over, p99, limit_nats
FROM verifications
WHERE p99 > limit_nats
ORDER BY p99 DESC""",
    ),
    Question(
        "Attempts that were lost, and on which worker",
        """SELECT worker_id, host, count(*) AS attempts, sum(sampled_tokens) AS sampled, list(session_id ORDER BY session_id) AS of_sessions
FROM attempts LEFT JOIN workers USING (worker_id)
WHERE status = 'REPLACED'
GROUP BY worker_id, host
ORDER BY attempts DESC, worker_id NULLS FIRST""",
    ),
    Question(
        "Processes, and which of them ended without a word",
        """SELECT role, host, worker_id, pools, claims, last_seen_at, is_lost
FROM workers
ORDER BY role, worker_id""",
    ),
    Question(
        "Slots of each pool and stage",
        """SELECT slot.pool AS pool, slot.stage AS stage, sum(slot.slots) AS slots, sum(slot.free) AS free
FROM (SELECT unnest(slots) AS slot FROM workers WHERE left_at IS NULL AND NOT is_lost)
GROUP BY ALL
ORDER BY pool, stage""",
        "Free slots are those of each process's last row, which may be a minute old; `polar status` has the present ones.",
    ),
    Question(
        "What waits for a person",
        """SELECT role, host, obstacle, last_seen_at
FROM workers
WHERE obstacle IS NOT NULL AND left_at IS NULL AND NOT is_lost
ORDER BY last_seen_at DESC""",
    ),
    Question(
        "Errors by cause",
        """SELECT source, error_stage, error_kind, error_code, count(*) AS errors, max(occurred_at) AS last
FROM errors
GROUP BY ALL
ORDER BY errors DESC, source, error_code""",
    ),
    Question(
        "Records that nobody could process, and that weren't sent again",
        """SELECT letter_id, source_topic, process, field, reason
FROM dead_letters
WHERE replayed_at IS NULL
ORDER BY letter_id""",
        "`polar dead-letters show` prints such a record.",
    ),
    Question(
        "Requests that the proxy refused",
        """SELECT session_id, method, path, status, code, sum(requests) AS requests
FROM refused_requests
GROUP BY ALL
ORDER BY requests DESC""",
    ),
)


def questions() -> list[tuple[str, str]]:
    """Title and SQL of each question, in the order of docs/sql.md."""
    return [(question.title, question.sql) for question in QUESTIONS]


def document() -> str:
    """All questions as Markdown."""
    return "\n".join(f"**{one.title}.**{one.note and f' {one.note}'}\n\n```sql\n{one.sql}\n```\n" for one in QUESTIONS)
