"""The views of weights, of processes, and of records that nobody could process."""

from __future__ import annotations

from analytics.queries.view import FIRST_CALLS, NEWEST, RUN, RUNS, SESSION, WEIGHTS, View

POLICY_VERSIONS = View(
    "policy_versions",
    "Weights that a trainer published (`polar.fleet`), with the calls that they sampled. Weights that calls name have a row also if their "
    "publication isn't in the lake.",
    {
        "publication": "offset of the record on `polar.fleet`; null: unknown",
        "policy_version": "the trainer's number, which may be published again; null: unknown",
        "engine": "whose weights, by its name in the proxies' settings; null: those of all engines, or the publication isn't in the lake",
        "published_at": "when, on the trainer's clock; null: the publication isn't in the lake",
        "is_rollback": "whether the number is lower than the one that it replaced; null: the publication isn't in the lake",
        "calls": "calls with a token of these weights whose `outcome` in `calls` is `answered`",
        "sampled_tokens": "tokens that these weights sampled, also in answers that nobody received",
    },
    f"""
    WITH runs AS (
        SELECT
            call_id, outcome, sampled_tokens, unnest({RUNS}) AS weights,
            unnest(CASE WHEN len(policy_spans) > 0 THEN span_publications ELSE [publication] END) AS publication
        FROM ({FIRST_CALLS})
        WHERE sampled_tokens > 0
    ), used AS (
        SELECT
            publication, weights.version AS policy_version, count(DISTINCT call_id) FILTER (outcome = 'answered') AS calls,
            CAST(sum(least(weights."end", sampled_tokens) - weights."start") AS BIGINT) AS sampled_tokens
        FROM runs
        GROUP BY ALL
    )
    SELECT
        coalesce(published.log_offset, used.publication) AS publication,
        coalesce(published.policy_version, used.policy_version) AS policy_version,
        engine, logged_at AS published_at, is_rollback,
        coalesce(calls, 0) AS calls, coalesce(sampled_tokens, 0) AS sampled_tokens
    FROM lake.publications AS published FULL JOIN used ON used.publication = published.log_offset
    """,  # noqa: S608 - our own
)
STALENESS = View(
    "staleness",
    "The trained tokens of a finished session that one engine sampled with one version, and the newest version at the session's end. Calls "
    "in which the weights changed are left out in sessions that an older Polar wrote to the lake.",
    {
        **SESSION,
        "run": RUN,
        "engine": "the engine that sampled the tokens",
        "policy_version": "version of the weights that sampled them; null: unknown",
        "tokens": "number of trained tokens",
        "ended_at": "when the session's trajectory was written, from when on a trainer reads it",
        "newest_version": "version that was published last for the engine before `ended_at`, by the clocks of trainer and builder; null: "
        "none is in the lake, or it was unknown",
        "versions_behind": "`newest_version` - `policy_version`; below 0 after a rollback; null: one of them is null",
    },
    f"""
    WITH ended AS (
        SELECT session_id, task_id, run, logged_at, log_partition, log_offset FROM lake.trajectories {NEWEST}
    ), weights AS ({WEIGHTS}), trained AS (
        SELECT
            nodes.session_id, nodes.log_partition, nodes.log_offset, engine, policy_version,
            CAST(sum(least(beyond, begin_at + size) - greatest(first, begin_at)) AS BIGINT) AS tokens
        FROM (
            SELECT
                session_id, log_partition, log_offset, call_id, answer_offset IS NOT NULL AS is_known,
                coalesce(answer_offset, 0) AS begin_at, len(tokens) AS size
            FROM lake.nodes
            WHERE call_id IS NOT NULL AND masked IS NULL
        ) AS nodes
        JOIN weights
            ON weights.session_id = nodes.session_id AND weights.log_partition = nodes.log_partition
            AND weights.log_offset = nodes.log_offset AND weights.call_id = nodes.call_id
            AND first < begin_at + size AND beyond > begin_at AND (is_known OR NOT is_part)
        GROUP BY ALL
    ), published AS (
        SELECT engine, logged_at, policy_version FROM lake.publications WHERE engine IS NOT NULL
        UNION ALL
        SELECT engines.engine, logged_at, policy_version
        FROM lake.publications, (SELECT DISTINCT engine FROM weights) AS engines
        WHERE publications.engine IS NULL
    ), delivered AS (
        SELECT ended.*, trained.engine, trained.policy_version, trained.tokens
        FROM trained JOIN ended USING (session_id, log_partition, log_offset)
    )
    SELECT
        session_id, task_id, run, delivered.engine, delivered.policy_version, tokens, delivered.logged_at AS ended_at,
        published.policy_version AS newest_version,
        published.policy_version - delivered.policy_version AS versions_behind
    FROM delivered ASOF LEFT JOIN published
        ON published.engine = delivered.engine AND delivered.logged_at >= published.logged_at
    """,  # noqa: S608 - our own
)
WORKERS = View(
    "workers",
    "A process of Polar, from one start to its end: a stage worker, a proxy, a coordinator, …",
    {
        "worker_id": "of this start of the process",
        "role": "`worker`, `proxy`, `coordinator`, `builder`, …",
        "host": "its host's name",
        "pid": "its process id there",
        "address": "URL at which other proxies reach it; null: it is no proxy",
        "pools": "the pools that it works for; empty: it does no stage",
        "slots": "by stage and pool: how many it has, and how many were free at `last_seen_at`",
        "in_flight": "a proxy's calls at engines at `last_seen_at`",
        "obstacle": "why a part of it waits for a person; null: nothing does",
        "first_seen_at": "its first heartbeat that the lake has",
        "last_seen_at": "its last one, exact to a minute",
        "left_at": "when it first announced its end; null: it runs, or was killed",
        "claims": "claims of stages that it made",
        "is_lost": "whether it ended without a word: it announced no end, and `last_seen_at` is more than 5 min before the newest "
        "heartbeat of any process in the lake",
    },
    """
    WITH newest AS (
        SELECT
            worker_id, max_by(role, log_offset) AS role, max_by(host, log_offset) AS host, max_by(pid, log_offset) AS pid,
            max_by(address, log_offset) AS address, max_by(slots, log_offset) AS slots,
            max_by(in_flight, log_offset) AS in_flight,
            max_by(coalesce(obstacle, ''), log_offset) AS obstacle,
            min(logged_at) AS first_seen_at, max(logged_at) AS last_seen_at, min(logged_at) FILTER (leaving) AS left_at
        FROM lake.heartbeats
        GROUP BY worker_id
    ), claimed AS (
        SELECT worker_id, count(DISTINCT claim_id) AS claims FROM lake.events WHERE fact = 'claimed' GROUP BY worker_id
    )
    SELECT
        newest.* REPLACE (nullif(obstacle, '') AS obstacle),
        list_sort(list_distinct([one.pool FOR one IN slots])) AS pools,
        coalesce(claims, 0) AS claims,
        left_at IS NULL AND last_seen_at < max(last_seen_at) OVER () - INTERVAL 5 MINUTE AS is_lost
    FROM newest LEFT JOIN claimed USING (worker_id)
    """,
)
DEAD_LETTERS = View(
    "dead_letters",
    "A record that nobody could process, without its bytes (`polar dead-letters` shows them).",
    {
        "letter_id": "offset on `polar.dead-letters`, as `polar dead-letters` shows it",
        "written_at": "when",
        "process": "who could not process it",
        "reason": "why, for people",
        "field": "the invalid field; null: none is to blame",
        "source_topic": "full name of the topic that it was read from; null: not recorded",
        "source_partition": "its partition there; null: not recorded",
        "source_offset": "its offset there; null: not recorded",
        "record_key": "the record's key; null: it has none",
        "bytes": "size of the record",
        "replayed_at": "when it was last sent again (`polar dead-letters replay`); null: it wasn't",
        "sent_to": "where to, as `topic[partition]@offset`; null: it wasn't",
    },
    """
    SELECT letter.*, log_offset AS letter_id, letter.logged_at AS written_at, replayed_at, sent_to
    FROM lake.dead_letters AS letter
    LEFT JOIN (
        SELECT letter_id, max(logged_at) AS replayed_at, max_by(sent_to, log_offset) AS sent_to
        FROM lake.dead_letter_replays
        GROUP BY letter_id
    ) AS replay ON replay.letter_id = letter.log_offset
    """,
)
