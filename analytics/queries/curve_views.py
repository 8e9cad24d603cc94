"""The views of a run's curves: sums over the sessions that ended in one minute, or while one version was the newest.

Their sums are those of the summaries (`summary_views.py`), over fewer sessions. Invariant: an ended session counts in exactly one row of
`run_minutes`, and in at most one of `run_versions`; once the lake has all records up to a row's `closed_at`, the row never changes.
"""

from __future__ import annotations

from analytics.queries.summary_views import COUNTED, COUNTS, OF_SESSIONS
from analytics.queries.view import NEWEST, View
from topics.types.token_tree import Drift, Masked

EXTENDING = (Drift.CLEAN.value, Drift.REALIGN.value)
"""Drift of calls that continue an earlier call exactly, so that both are one trace."""
PAUSE_MINUTES = 10
"""Without an ended session for this long, a row of `run_versions` is over, and the next session begins another one."""

RUN = "the run; null: the sessions of no run"
SUMS = {
    **{name: doc for name, doc in COUNTED.items() if name not in ("sessions", "submitted_at")},
    "failures": "sessions with an error, by its kind",
    "groups": "tasks whose last session ended in this row",
    "zero_variance_groups": "of these, with `zero_variance`",
    "zero_variance_share": "`zero_variance_groups` / `groups`; null: no task ended",
    "null_reward_share": "share of the sessions without a reward",
    "merge_rate": "share of the calls with a history that continue an earlier call exactly; null: there are none",
    "masked_tokens_sum": "sampled tokens that aren't trained, without those of side calls",
    "masked_share": "`masked_tokens_sum` / (`masked_tokens_sum` + `trainable_tokens`); null: both are 0",
    "mean_versions_behind": "mean of `versions_behind` in `staleness` over trained tokens; null: unknown",
    "closed_at": "no session that ends later can belong to this row",
}
ENDED = f"""
    WITH of_session AS ({OF_SESSIONS}), newest AS (
        SELECT session_id, masked_tokens, drift FROM lake.trajectories {NEWEST}
    ), stale AS (
        SELECT
            session_id, sum(tokens * versions_behind) AS versions_sum,
            sum(tokens) FILTER (versions_behind IS NOT NULL) AS versioned_tokens
        FROM staleness
        GROUP BY session_id
    ), grouped AS (
        SELECT task_id, zero_variance FROM groups WHERE ended = num_samples
    )
    SELECT
        of_session.*, coalesce(run, '') AS run_key, sessions.error_kind, versions_sum, versioned_tokens,
        coalesce(list_sum([
            one.value FOR one IN map_entries(newest.masked_tokens) IF one.key <> '{Masked.SIDE_CALL.value}'
        ]), 0) AS masked_sum,
        coalesce(list_sum([one.value FOR one IN map_entries(newest.drift) IF one.key IN {EXTENDING}]), 0) AS extending,
        coalesce(list_sum(map_values(newest.drift)), 0) AS with_history,
        grouped.task_id IS NOT NULL
            AND row_number() OVER (PARTITION BY of_session.task_id ORDER BY of_session.ended_at DESC, session_id DESC) = 1
            AS ends_group,
        zero_variance
    FROM of_session
    JOIN (SELECT session_id, error_kind FROM sessions) AS sessions USING (session_id)
    JOIN newest USING (session_id)
    LEFT JOIN stale USING (session_id)
    LEFT JOIN grouped ON grouped.task_id = of_session.task_id
    WHERE of_session.ended_at IS NOT NULL
"""  # noqa: S608 - our own
"""Each ended session with its share in the sums."""
MORE = """
    CAST(coalesce(histogram(error_kind) FILTER (error_kind IS NOT NULL), MAP {}) AS MAP(VARCHAR, BIGINT)) AS failures,
    count(*) FILTER (ends_group) AS groups, count(*) FILTER (ends_group AND zero_variance) AS zero_variance_groups,
    count(*) FILTER (ends_group AND zero_variance) / nullif(count(*) FILTER (ends_group), 0) AS zero_variance_share,
    count(*) FILTER (reward IS NULL) / count(*) AS null_reward_share,
    sum(extending) / nullif(sum(with_history), 0) AS merge_rate,
    CAST(sum(masked_sum) AS BIGINT) AS masked_tokens_sum,
    sum(masked_sum) / nullif(sum(masked_sum) + coalesce(sum(trainable_tokens), 0), 0) AS masked_share,
    sum(versions_sum) / sum(versioned_tokens) AS mean_versions_behind
"""

RUN_MINUTES = View(
    "run_minutes",
    "The sessions of a run that ended in one minute.",
    {
        "run": RUN,
        "minute": "its beginning",
        "minute_number": "minutes from the one in which the run's first task was submitted, or, if that is unknown, its first session "
        "ended",
        **SUMS,
    },
    f"""
    WITH ended AS ({ENDED}), placed AS (
        SELECT *, to_timestamp(epoch_ms(ended_at) // 60000 * 60) AS minute FROM ended
    ), begun AS (
        SELECT coalesce(run, '') AS run_key, min(submitted_at) AS begun_at FROM tasks GROUP BY run_key
    ), summed AS (
        SELECT any_value(run) AS run, run_key, minute, {COUNTS}, {MORE} FROM placed GROUP BY run_key, minute
    )
    SELECT
        *, epoch_ms(minute) // 60000 - epoch_ms(coalesce(begun_at, min(minute) OVER (PARTITION BY run_key))) // 60000 AS minute_number,
        minute + INTERVAL 1 MINUTE AS closed_at
    FROM summed LEFT JOIN begun USING (run_key)
    """,  # noqa: S608 - our own
)
RUN_VERSIONS = View(
    "run_versions",
    "The sessions of a run that ended while one published version was the newest of the engines that the run uses. Sessions that ended "
    f"before the first publication are in no row. A pause of {PAUSE_MINUTES} minutes without an ended session divides a version's "
    "sessions into two rows.",
    {
        "run": RUN,
        "publication": "offset of its record on `polar.fleet`",
        "policy_version": "the trainer's number",
        "published_at": "when, on the trainer's clock",
        **SUMS,
    },
    f"""
    WITH ended AS MATERIALIZED ({ENDED}), used AS (
        SELECT DISTINCT run_key, engine FROM ended JOIN lake.trajectory_calls USING (session_id)
    ), published AS (
        SELECT
            *, lead(published_at) OVER (PARTITION BY run_key ORDER BY published_at, publication) AS replaced_at
        FROM (
            SELECT DISTINCT run_key, log_offset AS publication, policy_version, logged_at AS published_at
            FROM lake.publications JOIN used ON publications.engine IS NULL OR publications.engine = used.engine
            WHERE policy_version IS NOT NULL
        )
    ), placed AS (
        SELECT ended.*, publication, policy_version, published_at, replaced_at
        FROM ended ASOF JOIN published ON ended.run_key = published.run_key AND ended.ended_at >= published.published_at
    ), paused AS (
        SELECT
            *, coalesce(ended_at - lag(ended_at) OVER of_version > INTERVAL {PAUSE_MINUTES} MINUTE, false) AS is_after_pause
        FROM placed WINDOW of_version AS (PARTITION BY run_key, publication ORDER BY ended_at)
    ), numbered AS (
        SELECT *, count(*) FILTER (is_after_pause) OVER (PARTITION BY run_key, publication ORDER BY ended_at) AS part FROM paused
    )
    SELECT
        any_value(run) AS run, publication, any_value(policy_version) AS policy_version, any_value(published_at) AS published_at,
        {COUNTS}, {MORE},
        least(any_value(replaced_at), max(numbered.ended_at) + INTERVAL {PAUSE_MINUTES} MINUTE) AS closed_at
    FROM numbered GROUP BY run_key, publication, part
    """,  # noqa: S608 - our own
)
