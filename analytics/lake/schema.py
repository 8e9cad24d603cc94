"""The lake's tables: one declaration of columns, from which the Arrow schema and the documentation are rendered.

Every row says where on the log its record lies; a record may give several rows (a trajectory's nodes). Invariant: with `log_partition`,
`log_offset` and what else names the row, each is there exactly once. Columns are only ever added, at a table's end, and are null in older
files. Integers are 64 bits wide, so that no value a record can hold is too large. How records become rows is `analytics/lake/rows.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

TEXT = pa.string()
INT = pa.int64()
FLOAT = pa.float64()
FLAG = pa.bool_()
INSTANT = pa.timestamp("ms", tz="UTC")
IDS = pa.list_(pa.int32())
"""Token ids, or indexes; a row gives them packed (`topics.types.tokens`)."""
LOGPROBS = pa.list_(pa.float32())
"""A row gives them packed."""
PACKED = (IDS, LOGPROBS)
TEXTS = pa.map_(TEXT, TEXT)
COUNTS = pa.map_(TEXT, INT)
SPANS = pa.list_(pa.struct([("version", INT), ("start", INT), ("end", INT)]))
SLOTS = pa.list_(pa.struct([("stage", TEXT), ("pool", TEXT), ("slots", INT), ("free", INT)]))


@dataclass(frozen=True)
class Column:
    name: str
    type: Any
    """A pyarrow DataType: pyarrow ships no types."""
    doc: str
    """Unit, who sets it, what null means."""


@dataclass(frozen=True)
class Table:
    """One table, its files in a folder of its name."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    @property
    def arrow(self) -> Any:
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])


LOG = (
    Column("log_partition", pa.int16(), "partition of the record's topic"),
    Column("log_offset", INT, "the record's offset there"),
    Column("logged_at", INSTANT, "Kafka's time of the record"),
)
SESSION = (Column("session_id", TEXT, "`<task_id>.<sample_index>`"), Column("task_id", TEXT, "the session's task"))
ERROR = (
    Column("error_stage", TEXT, "where it went wrong; null: no error"),
    Column("error_kind", TEXT, "infra, agent, evaluation, budget or input"),
    Column("error_code", TEXT, "stable, for programs"),
    Column("error_message", TEXT, "for people"),
    Column("error_retryable", FLAG, "whether another attempt may go better"),
)
OUTPUT = (Column("output", TEXT, "suffix of the trajectories topic that holds the record; null: the default one"),)
POLICY = (
    Column(
        "policy_spans",
        SPANS,
        "where weights changed within the answer: which sampled its tokens `[start, end)`; empty, and null in older files: "
        "`policy_version` is every token's",
    ),
    Column("realigned", INT, "prompt tokens kept as they were sampled, where the engine rendered them otherwise"),
)
"""Of a call."""
FACTS = (
    Column(
        "publication",
        INT,
        "offset on `polar.fleet` of the record that published its weights; null: unknown, and in older files",
    ),
    Column("span_publications", pa.list_(INT), "the same of each of `policy_spans`; null in older files"),
    Column(
        "prompt_doubt", TEXT, "why the engine may have read another prompt than is recorded; null: nothing shows that"
    ),
    Column("routed_experts", TEXT, "blob reference: the experts chosen for each token; null: not captured"),
    Column("sampling_mask", TEXT, "blob reference: the tokens that truncation left; null: not captured"),
    Column("uncaptured", TEXTS, "reason by `routed_experts` or `sampling_mask`; null in older files"),
)
"""Columns of a call that a trainer needs for an importance ratio."""
CLIENT = Column("client", TEXT, "the client's User-Agent: its name and version; null: it sent none, and in older files")

EVENTS = Table(
    "events",
    "Facts, as `polar.events` holds them: what happened to tasks and sessions.",
    (
        *LOG,
        Column("fact", TEXT, "what happened: `task_submitted`, `claimed`, `run_finished`, …"),
        Column("fact_id", TEXT, "the same when the fact was sent again"),
        Column("task_id", TEXT, "the task that it is about"),
        Column("session_id", TEXT, "null: about a whole task"),
        Column("attempt", INT, "null: not of one attempt"),
        Column("stage", TEXT, "init, run or evaluate; null: of no stage"),
        Column("claim_id", TEXT, "a worker's hold on a stage; null: of none"),
        Column("worker_id", TEXT, "who claimed; null: no claim"),
        Column("pool", TEXT, "of a submitted task"),
        Column("harness", TEXT, "of a submitted task"),
        Column("num_samples", INT, "of a submitted task"),
        Column("status", TEXT, "how a run ended, or what its trajectory says"),
        Column("reward", FLOAT, "null: no evaluator gave one"),
        *ERROR,
        Column("exit_code", INT, "the harness's"),
        Column("duration_ms", INT, "of the stage that finished; null: no stage did"),
        Column("detail", TEXT, "the whole fact as JSON, a task's body apart"),
        Column(
            "backend",
            TEXT,
            "of the runtime that an init made; null: the fact is no init's, the init failed, or an older file",
        ),
        Column(
            "unenforced",
            pa.list_(TEXT),
            "what that runtime doesn't enforce on its host; null: not reported, and as `backend`",
        ),
        Column("run", TEXT, "of a submitted or an opened task; null: of no run, and in older files"),
    ),
)
COMPLETIONS = Table(
    "completions",
    "Captured model calls, as `polar.completions` holds them: prompt and messages follow what they share with `base`.",
    (
        *LOG,
        Column("call_id", TEXT, "what the answer's id holds"),
        *SESSION,
        Column("sample_index", INT, "of the session within its task"),
        Column("attempt", INT, "of the session"),
        Column("claim_id", TEXT, "the run claim whose key it used"),
        Column("outcome", TEXT, "answered, failed or abandoned"),
        Column("dialect", TEXT, "the harness's wire format"),
        Column("engine", TEXT, "which inference server"),
        Column("model_requested", TEXT, "the model that the harness asked for; null: none named"),
        Column("model_served", TEXT, "the model that answered; null: it told none"),
        Column("kind", TEXT, "`main`, or what a rule recognised: a sub-agent's, a compaction, a side call"),
        Column("kind_rule", TEXT, "that rule; null: main"),
        Column("received_at", INSTANT, "on the proxy's clock; null: outside the years 1970 to 9999"),
        Column("completed_at", INSTANT, "on the proxy's clock, as received_at"),
        Column("base", TEXT, "the call whose prompt + sampled tokens the prompt begins with; null: none"),
        Column("prompt_tokens", INT, "in the whole prompt"),
        Column("shared_tokens", INT, "of them, how many are base's"),
        Column("sampled_tokens", INT, "in the answer"),
        Column("prompt_rest", IDS, "the prompt's ids after what is shared"),
        Column("prompt_chain", pa.binary(), "last link of the hash chain over the prompt's blocks of 256"),
        Column("sampled", IDS, "the answer's ids; empty: not answered"),
        Column("logprobs", LOGPROBS, "of the sampled ids, as many"),
        Column("logprobs_mode", TEXT, "raw, processed (after temperature and truncation), or unknown"),
        Column("messages_base", TEXT, "the call whose messages + answer the messages begin with; null: none"),
        Column("messages_shared", INT, "how many of them are its"),
        Column("messages_rest", TEXT, "JSON array: the messages after what is shared"),
        Column("answer", TEXT, "JSON: the assistant's message; null: not answered"),
        Column("tools", TEXT, "JSON array of tools where they differ from base's; null: the same, or none"),
        Column("finish_reason", TEXT, "null: not answered"),
        Column("policy_version", INT, "of its first token; null: not known"),
        Column(
            "temperature",
            FLOAT,
            "this and the next eight: what it was sampled with; null: the engine's default, which isn't known",
        ),
        Column("top_p", FLOAT, ""),
        Column("top_k", INT, ""),
        Column("min_p", FLOAT, ""),
        Column("presence_penalty", FLOAT, ""),
        Column("frequency_penalty", FLOAT, ""),
        Column("repetition_penalty", FLOAT, ""),
        Column("seed", INT, ""),
        Column("max_tokens", INT, ""),
        Column("truncated", FLAG, "whether from a distribution that is known to be truncated"),
        Column("grammar", FLAG, "whether a grammar constrained it, or was asked for; false: see grammar_source"),
        Column("lineage", TEXTS, "the harness's own ids, by canonical name; null: it sent none"),
        Column("stream", FLAG, "whether the harness asked for a stream"),
        Column("error_code", TEXT, "why there is no answer; null: there is one"),
        Column("error_message", TEXT, "for people"),
        Column("error_status", INT, "the engine's HTTP status, where there was one"),
        Column("choice", INT, "index among the answers to one request (OpenAI's n); null: from an older Polar"),
        Column("stored_from", INT, "the first message that a call which continues this one inherits; null: none may"),
        *POLICY,
        Column("stop_sequence", TEXT, "the stop string that ended the answer; null: none did"),
        Column("reasoning_effort", TEXT, "as asked for; null: not said"),
        Column("tool_choice", TEXT, "`none`, or `function:` and the only callable tool; null: the model chose"),
        Column("unsaid_calls", INT, "sampled tool calls not sent to the harness, which takes one at a time"),
        *FACTS,
        Column(
            "media",
            TEXT,
            "JSON array: the images and sounds that begin in `prompt_rest`, or all of the prompt's (docs/events.md); "
            "null: none, and in older files",
        ),
        Column(
            "rejects",
            pa.list_(TEXT),
            "earlier calls with this very prompt whose answers the harness had received whole; null in older files",
        ),
        Column(
            "grammar_source",
            TEXT,
            "what the grammar came from: response_format, tool_choice, strict_tools, parallel_tool_calls, engine (unasked); "
            "none: there was none; unknown, and null in older files: nobody knows",
        ),
        Column("stop", pa.list_(TEXT), "strings that end the answer; null in older files"),
        Column("logit_bias", TEXT, "JSON object: added to logits, by token id; null: nothing, and in older files"),
        CLIENT,
    ),
)
DISOWNED = Table(
    "disowned",
    "Calls that the proxy gave up on and never answered, though their record may be there.",
    (
        *LOG,
        Column("call_id", TEXT, "the call"),
        *SESSION,
        Column("claim_id", TEXT, "its run claim"),
        Column("reason", TEXT, "unacknowledged, closed or hung_up"),
    ),
)
REFUSED_REQUESTS = Table(
    "refused_requests",
    "Requests with a valid key that the proxy refused, and made no call of. Of many of one claim only some have a row.",
    (
        *LOG,
        *SESSION,
        Column("attempt", INT, "of the session"),
        Column("claim_id", TEXT, "the run claim whose key it used"),
        Column("refused_at", INSTANT, "on the proxy's clock; null: outside the years 1970 to 9999"),
        Column("method", TEXT, "HTTP method"),
        Column("path", TEXT, "without key and query"),
        Column("status", INT, "HTTP status of the answer"),
        Column("code", TEXT, "invalid, not_found, too_large, slow, spent or upgrade"),
        Column("message", TEXT, "as in the answer"),
        Column("client", TEXT, "the client's User-Agent; null: it sent none"),
        Column("requests", INT, "the requests that the row counts: this one, and those refused since the row before"),
    ),
)
TRAJECTORIES = Table(
    "trajectories",
    "What sessions yielded, one row each; `nodes`, `traces` and `trajectory_calls` hold the rest of the record.",
    (
        *LOG,
        *SESSION,
        Column("sample_index", INT, "within its task"),
        Column("num_samples", INT, "of its task"),
        Column("attempt", INT, "the one that it is of"),
        Column("status", TEXT, "COMPLETED, FAILED, TIMED_OUT or CANCELLED"),
        Column("harness", TEXT, "by name, or `module:Class`"),
        Column("builder", TEXT, "by name, or `module:Class`"),
        Column("reward", FLOAT, "null: no evaluator gave one"),
        *ERROR,
        Column("traces", INT, "how many"),
        Column("calls", INT, "how many"),
        Column("answered", INT, "of the calls"),
        Column("tokens", INT, "in the tree, each once"),
        Column("sampled_tokens", INT, "of them"),
        Column("trainable_tokens", INT, "of them"),
        Column("late_calls", INT, "outside of its own open and build"),
        Column("masked_tokens", COUNTS, "sampled, not trainable, by reason"),
        Column("branches", COUNTS, "by reason"),
        Column("drift", COUNTS, "by sort"),
        Column("init_queued_ms", INT, "this and the next six: where the time of the last attempt went"),
        Column("init_ms", INT, ""),
        Column("run_queued_ms", INT, ""),
        Column("run_ms", INT, ""),
        Column("evaluate_queued_ms", INT, ""),
        Column("evaluate_ms", INT, ""),
        Column("attempts_lost", INT, "to infrastructure"),
        Column("artifacts", TEXTS, "name to blob reference; null: none"),
        Column("metadata", TEXT, "JSON object: the task's"),
        Column("mode", TEXT, "train or eval"),
        *OUTPUT,
        Column(
            "reward_reason", TEXT, "the evaluator's words, or its error; null: no reason was given, and in older files"
        ),
        Column("run", TEXT, "the task's; null: of no run, and in older files"),
        Column("label", TEXT, "the user's name for an opened session; null: none, and in older files"),
    ),
)
TRAJECTORY_CALLS = Table(
    "trajectory_calls",
    "A trajectory's calls, with what the builder made of them.",
    (
        *LOG,
        *SESSION,
        Column("call", INT, "index within the trajectory"),
        Column("call_id", TEXT, "as in `completions`"),
        Column("parent_id", TEXT, "the call whose tokens its prompt extends furthest; null: none"),
        Column("branch", TEXT, "`root`, or why it is no plain continuation; null: it is one, or has no answer"),
        Column("kind", TEXT, "`main`, or the sort of side call"),
        Column("outcome", TEXT, "answered, failed or abandoned"),
        Column("dialect", TEXT, "the harness's wire format"),
        Column("received_at", INSTANT, "on the proxy's clock; null: outside the years 1970 to 9999"),
        Column("completed_at", INSTANT, "as received_at"),
        Column("prompt_tokens", INT, "in the whole prompt"),
        Column("sampled_tokens", INT, "in the answer"),
        Column("finish_reason", TEXT, "null: not answered"),
        Column("policy_version", INT, "of its first token; null: not known"),
        Column("model_served", TEXT, "null: not told"),
        Column("reward", FLOAT, "of the call; null: none given"),
        Column("sampling", TEXT, "JSON object: the settings that are known, as in `completions`"),
        *OUTPUT,
        *POLICY,
        Column("engine", TEXT, "its name in the proxy's settings; empty or null in older files"),
        Column("logprobs_mode", TEXT, "raw, processed (after temperature and truncation), or unknown"),
        *FACTS,
        Column("media", INT, "images and sounds in its prompt; null in older files"),
        Column(
            "plain",
            FLAG,
            "whether it is known to be sampled from the model's own distribution (docs/ratios.md); null in older files",
        ),
        CLIENT,
        Column("error_code", TEXT, "why there is no answer; null: there is one, and in older files"),
    ),
)
TRACES = Table(
    "traces",
    "Trainable token sequences: paths from a root to a leaf of the trajectory's nodes.",
    (
        *LOG,
        Column("trace_id", TEXT, ""),
        *SESSION,
        Column("leaf", INT, "the node where the path ends"),
        Column("trains", IDS, "nodes of the path whose tokens are trained in this trace, ascending"),
        Column("kind", TEXT, "`main`, or the sort of side call"),
        Column("reward", FLOAT, "null: none given"),
        Column("finish_reason", TEXT, "of its last call"),
        Column("tokens", INT, "along the path"),
        Column("trainable_tokens", INT, "in the nodes that it trains"),
        Column("calls", INT, "that sampled tokens of the path"),
        *OUTPUT,
        Column("path", IDS, "nodes from the root to `leaf`; null in older files"),
        Column("starts", IDS, "position in the trace of the first token of each node of `path`; null in older files"),
    ),
)
NODES = Table(
    "nodes",
    "A trajectory's token tree: runs of tokens that all their descendants share, each token once.",
    (
        *LOG,
        *SESSION,
        Column("node", INT, "index within the trajectory; greater than its parent's"),
        Column("parent", INT, "-1: starts a path"),
        Column("tokens", IDS, "not empty"),
        Column("logprobs", LOGPROBS, "as many; null: the model only read them"),
        Column("call_id", TEXT, "of the call that sampled them; null: the model only read them"),
        Column(
            "masked",
            TEXT,
            "why sampled tokens are trained in no trace, a reason of docs/builder.md (`side_call`, `rejected`, …); null: they are, or "
            "weren't sampled",
        ),
        *OUTPUT,
        Column("media", TEXT, "JSON array: the images and sounds that begin in it; null: none, and in older files"),
        Column(
            "answer_offset",
            INT,
            "tokens of its call's answer before its own; null: the model only read its tokens, and in older files",
        ),
    ),
)
GROUPS = Table(
    "groups",
    "Tasks all of whose trajectories are out.",
    (
        *LOG,
        Column("task_id", TEXT, ""),
        Column("num_samples", INT, ""),
        Column("session_ids", pa.list_(TEXT), "by sample index"),
        Column("rewards", pa.list_(FLOAT), "by sample index; null where no evaluator gave one"),
        Column("statuses", pa.list_(TEXT), "by sample index"),
        *OUTPUT,
        Column("run", TEXT, "the task's; null: of no run, and in older files"),
    ),
)
VERIFICATIONS = Table(
    "verifications",
    "Finished traces that an engine has scored again (`polar verify`). Differences are |recorded logprob - scored logprob|, in nats.",
    (
        *LOG,
        Column("trace_id", TEXT, "as in `traces`"),
        *SESSION,
        Column("engine", TEXT, "which engine sampled the tokens"),
        Column("server", TEXT, "URL of the server that scored them"),
        Column("verified_at", INSTANT, "on the verifier's clock; null: outside the years 1970 to 9999"),
        Column("policy_version", INT, "of the weights that sampled and scored; null: not known"),
        Column("publication", INT, "of that version; null: not known"),
        Column("tokens", INT, "tokens that were scored"),
        Column("median", FLOAT, "median difference"),
        Column("p99", FLOAT, "99 of 100 scored tokens differ by no more"),
        Column("largest", FLOAT, "largest difference; 9999: a token without any probability"),
        Column("limit_nats", FLOAT, "the p99 that was accepted"),
        Column("over", INT, "scored tokens whose difference is above `limit_nats`"),
        Column(
            "logprobs", LOGPROBS, "the scored logprob of each token that the trace trains, in order; NaN: not scored"
        ),
        Column("unscored", COUNTS, "the engine's trained tokens of the trace that weren't scored, by reason"),
        *OUTPUT,
    ),
)
PUBLICATIONS = Table(
    "publications",
    "Weights that trainers published, as `polar.fleet` holds them. `log_offset` is what other tables call `publication`.",
    (
        *LOG,
        Column("policy_version", INT, "the trainer's number; null: unknown, since an update was interrupted"),
        Column("engine", TEXT, "whose weights, by its name in the proxies' settings; null: those of all engines"),
        Column("is_rollback", FLAG, "whether the number is lower than the one that it replaced"),
    ),
)
HEARTBEATS = Table(
    "heartbeats",
    "A sample of the heartbeats of all processes, which `polar.workers` keeps for an hour. Of each process: the first that the writer "
    "reads, the first of each minute, and each with other slots, another address or obstacle, or the news that the process leaves.",
    (
        *LOG,
        Column("worker_id", TEXT, "of one start of a process, as in `events`"),
        Column("role", TEXT, "`worker`, `proxy`, `coordinator`, …"),
        Column("host", TEXT, "its host's name"),
        Column("pid", INT, "its process id there"),
        Column("address", TEXT, "URL at which other proxies reach it; null: it is no proxy, or not ready"),
        Column("leaving", FLAG, "whether it shuts down"),
        Column("in_flight", INT, "a proxy's calls at engines at that moment"),
        Column("slots", SLOTS, "by stage and pool: how many it has, and how many are free at that moment"),
        Column("obstacle", TEXT, "why a part of it waits for a person; null: nothing does"),
    ),
)
DEAD_LETTERS = Table(
    "dead_letters",
    "Records that could not be processed, as `polar.dead-letters` holds them, without their bytes. `log_offset` is the letter's id.",
    (
        *LOG,
        Column("record_key", TEXT, "the record's key; null: it has none"),
        Column("bytes", INT, "size of the record's value"),
        Column("reason", TEXT, "for people"),
        Column("field", TEXT, "the invalid field; null: none is to blame"),
        Column("process", TEXT, "who could not process it"),
        Column("source_topic", TEXT, "full name of the topic that it was read from; null: not recorded"),
        Column("source_partition", INT, "its partition there; null: not recorded"),
        Column("source_offset", INT, "its offset there; null: not recorded"),
    ),
)
DEAD_LETTER_REPLAYS = Table(
    "dead_letter_replays",
    "Dead letters that were sent to their topic again (`polar dead-letters replay`).",
    (
        *LOG,
        Column("letter_id", INT, "the letter's id"),
        Column("sent_to", TEXT, "`topic[partition]@offset`"),
    ),
)
TABLES = {
    table.name: table
    for table in (
        EVENTS,
        COMPLETIONS,
        DISOWNED,
        REFUSED_REQUESTS,
        TRAJECTORIES,
        TRAJECTORY_CALLS,
        TRACES,
        NODES,
        GROUPS,
        VERIFICATIONS,
        PUBLICATIONS,
        HEARTBEATS,
        DEAD_LETTERS,
        DEAD_LETTER_REPLAYS,
    )
}


def document() -> str:
    """All tables as Markdown."""
    return "\n\n".join(_section(table) for table in TABLES.values()) + "\n"


def _section(table: Table) -> str:
    rows = [f"| `{column.name}` | {column.type} | {column.doc} |" for column in table.columns]
    return "\n".join([f"### {table.name}", "", table.doc, "", "| column | type | meaning |", "|---|---|---|", *rows])
