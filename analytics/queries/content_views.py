"""The views of what sessions said, token by token and message by message, and of how an engine scores it again."""

from __future__ import annotations

from analytics.queries.view import CALL_NUMBER, NEWEST, NUMBERED_CALLS, SESSION, WEIGHTS, View

CALL_KIND = "kind of the call, as in `calls`"
CALL_OUTCOME = "how the call ended, as in `calls`"
TEXT_OF_PARTS = (
    "array_to_string([coalesce(part ->> '$.text', '[' || (part ->> '$.type') || ']') "
    "FOR part IN json_extract(message, '$.content[*]')], chr(10))"
)

MESSAGES = View(
    "messages",
    "A message that a call sent and no earlier answered call of its attempt had, or a call's answer; ordered by `call_number` and "
    "`position`. A message stands twice if a call without an answer and its retry sent it, if two attempts did, or if the proxy had "
    "forgotten the earlier call. A call whose harness edited its history has rows from the first edited message on.",
    {
        **SESSION,
        "attempt": "of the session, from 1",
        "call_number": CALL_NUMBER,
        "call_id": "the call",
        "kind": CALL_KIND,
        "outcome": CALL_OUTCOME,
        "position": "of the message in the call's conversation, from 0; the messages before its first row are those of `base`",
        "is_answer": "whether the model sent it, also if nobody received it (`outcome`); otherwise the harness did",
        "role": "`system`, `developer`, `user`, `assistant` or `tool`",
        "content": "the text; parts stand on lines of their own, and one that isn't text is its type in brackets; null: none",
        "reasoning": "the model's reasoning; null: none",
        "tool_calls": "JSON array of the tool calls, with `id` and `function` (`name`, `arguments`); null: none",
        "tool_call_id": "of a tool's result: the tool call that it answers; null: no result",
        "base": "the call whose messages, with its answer, the conversation begins with; null: it shares none",
    },
    f"""
    WITH sent AS (
        SELECT
            session_id, task_id, attempt, call_number, call_id, kind, outcome, messages_base AS base, messages_shared AS shared,
            CASE WHEN json_valid(messages_rest) THEN json_extract(messages_rest, '$[*]') ELSE [] END AS requested,
            CASE WHEN json_valid(answer) THEN [CAST(answer AS JSON)] ELSE [] END AS answered
        FROM ({NUMBERED_CALLS})
    ), numbered AS (
        SELECT
            session_id, task_id, attempt, call_number, call_id, kind, outcome, base,
            shared + len(requested) AS answer_position,
            unnest(list_concat(requested, answered)) AS message,
            unnest(range(shared, shared + len(requested) + len(answered))) AS position
        FROM sent
    )
    SELECT
        *,
        position = answer_position AS is_answer,
        message ->> '$.role' AS role,
        CASE json_type(message, '$.content')
            WHEN 'VARCHAR' THEN message ->> '$.content'
            WHEN 'ARRAY' THEN {TEXT_OF_PARTS}
        END AS content,
        message ->> '$.reasoning' AS reasoning,
        CASE WHEN json_array_length(message, '$.tool_calls') > 0 THEN message ->> '$.tool_calls' END AS tool_calls,
        message ->> '$.tool_call_id' AS tool_call_id
    FROM numbered
    """,  # noqa: S608 - our own
)
TOKENS = View(
    "tokens",
    "A token of a trace. Traces share the beginnings of their paths, so a token may be in several; it is trained in one at most. Traces "
    "that an older Polar wrote to the lake have no rows.",
    {
        "trace_id": "as in `traces`",
        **SESSION,
        "position": "in the trace, from 0",
        "token": "the token's id",
        "trained": "whether this trace trains it",
        "reason": "why this trace doesn't: `read` (the model didn't sample it), `other_trace` (another trace of the session does), or as "
        "in `masked_tokens` (docs/builder.md); null: it does",
        "logprob": "as the engine reported it, also of sampled tokens that aren't trained; null: the model only read the token, or its "
        "call has another number of logprobs than of tokens",
        "policy_version": "version of the weights that sampled it; null: unknown, or only read",
        "call_id": "the call that sampled it; null: only read",
    },
    f"""
    WITH steps AS (
        SELECT
            trace_id, session_id, task_id, log_partition, log_offset, output, trains,
            unnest(path) AS node, unnest(starts) AS start
        FROM (FROM lake.traces {NEWEST})
    ), weights AS ({WEIGHTS}), placed AS (
        SELECT
            trace_id, steps.session_id, steps.task_id, nodes.call_id, policy_version, masked, is_part, tokens, logprobs, start,
            list_contains(trains, steps.node) AS trained,
            CASE WHEN is_part THEN greatest(first - answer_offset, 0) ELSE 0 END AS skipped,
            beyond - answer_offset AS last
        FROM steps
        JOIN (SELECT *, len(tokens) AS size FROM lake.nodes) AS nodes
            ON nodes.session_id = steps.session_id AND nodes.log_partition = steps.log_partition
            AND nodes.log_offset = steps.log_offset AND nodes.node = steps.node AND nodes.output IS NOT DISTINCT FROM steps.output
        LEFT JOIN weights
            ON weights.session_id = nodes.session_id AND weights.log_partition = nodes.log_partition
            AND weights.log_offset = nodes.log_offset AND weights.call_id = nodes.call_id
            AND first < answer_offset + size AND beyond > answer_offset
    ), runs AS (
        SELECT
            trace_id, session_id, task_id, call_id, policy_version, masked, trained, start + skipped AS start,
            CASE WHEN is_part THEN list_slice(tokens, skipped + 1, last) ELSE tokens END AS tokens,
            CASE WHEN is_part THEN list_slice(logprobs, skipped + 1, last) ELSE logprobs END AS logprobs
        FROM placed
    )
    SELECT
        trace_id, session_id, task_id, call_id, policy_version, trained,
        unnest(range(start, start + len(tokens))) AS position, unnest(tokens) AS token, unnest(logprobs) AS logprob,
        CASE
            WHEN trained THEN NULL
            WHEN call_id IS NULL THEN 'read'
            ELSE coalesce(masked, 'other_trace')
        END AS reason
    FROM runs
    """,  # noqa: S608 - our own
)
LINEAGE = View(
    "lineage",
    "Which call continues which, and why not.",
    {
        **SESSION,
        "attempt": "of the session, from 1",
        "call_number": CALL_NUMBER,
        "call_id": "the call",
        "kind": CALL_KIND,
        "outcome": CALL_OUTCOME,
        "parent_id": "the call with the longest prompt and answer that its prompt continues, as in `calls`; null: none",
        "parent_number": "the parent's `call_number`; null: no parent",
        "continues": "whether its prompt begins with the parent's whole prompt and answer; null: it has no answer, or its attempt has no "
        "trajectory",
        "branch": "`root`, or why it doesn't continue its parent (docs/builder.md); null: it does, or as `continues`",
        "prompt_tokens": "in the whole prompt",
        "shared_tokens": "how many of the prompt tokens belong to an earlier call's prompt and answer",
    },
    """
    SELECT
        call.*,
        parent.call_number AS parent_number,
        CASE WHEN is_placed AND call.sampled_tokens > 0 THEN call.parent_id IS NOT NULL AND call.branch IS NULL END AS continues
    FROM calls AS call
    LEFT JOIN (SELECT session_id, call_id, call_number FROM calls) AS parent
        ON parent.session_id = call.session_id AND parent.call_id = call.parent_id
    LEFT JOIN (SELECT call_id, true AS is_placed FROM lake.trajectory_calls GROUP BY call_id) AS placed
        ON placed.call_id = call.call_id
    """,
)
DRIFT = View(
    "drift",
    "How far the recorded logprobs are from those that engines give when they score the tokens again (`polar verify`), for each engine and "
    "version. Differences are |recorded logprob - scored logprob|, in nats; a token with a scored logprob counts once. "
    "Traces that an older Polar wrote to the lake are left out, since they have no `tokens`.",
    {
        "engine": "the engine that sampled the tokens",
        "policy_version": "version of the weights that sampled and scored them; null: unknown",
        "traces": "number of traces that were scored",
        "tokens": "number of tokens that were scored",
        "mean_difference": "mean difference",
        "p99": "99 of 100 scored tokens differ by no more",
        "largest": "largest difference",
        "mean_log_ratio": "mean of recorded - scored, with its sign: an estimate of the KL divergence of the scoring model from the "
        "sampling one",
    },
    f"""
    WITH of_trace AS (
        SELECT trace_id, list(logprob ORDER BY position) AS recorded
        FROM tokens
        WHERE trained AND trace_id IN (SELECT trace_id FROM verifications)
        GROUP BY trace_id
    ), compared AS (
        SELECT
            verified.engine, verified.policy_version, trace_id,
            CAST(unnest(verified.logprobs) AS DOUBLE) AS scored, CAST(unnest(recorded) AS DOUBLE) AS recorded
        FROM verifications AS verified
        JOIN (SELECT trace_id, output FROM lake.traces {NEWEST}) AS written USING (trace_id)
        JOIN of_trace USING (trace_id)
        WHERE written.output IS NOT DISTINCT FROM verified.output AND len(verified.logprobs) = len(recorded)
    )
    SELECT
        engine, policy_version, count(DISTINCT trace_id) AS traces, count(*) AS tokens,
        avg(abs(recorded - scored)) AS mean_difference,
        quantile_cont(abs(recorded - scored), 0.99) AS p99,
        max(abs(recorded - scored)) AS largest,
        avg(recorded - scored) AS mean_log_ratio
    FROM compared
    WHERE NOT isnan(scored)
    GROUP BY engine, policy_version
    """,  # noqa: S608 - our own
)
