"""The causes that a diagnosis knows, and the form of their entries in the tables of `waiting`, `calls`, `failures` and `completed`.

A sentence and its way out are texts with placeholders, which `Facts.words` fills. docs/troubleshooting.md shows them, and a test compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from polar.diagnosis.facts import Facts


class Cause(StrEnum):
    """Names for programs; they don't change."""

    KAFKA_AWAY = "kafka_away"
    REFUSED = "refused"
    NO_FANOUT = "no_fanout"
    NO_COORDINATOR = "no_coordinator"
    OBSTACLE = "obstacle"
    CANCELLED_BEFORE = "cancelled_before"
    UNKNOWN = "unknown"
    SUBMITTED = "submitted"
    DEAD_LETTER = "dead_letter"
    NO_WORKERS = "no_workers"
    DRAINING = "draining"
    SLOTS_BUSY = "slots_busy"
    RUN_SLOTS_BUSY = "run_slots_busy"
    PAUSED = "paused"
    NO_BUILDER = "no_builder"
    ATTEMPT_FAILED = "attempt_failed"
    ATTEMPT_LOST = "attempt_lost"
    UNOPENED = "unopened"
    NEXT = "next"
    AGENT_WORKS = "agent_works"
    WORKS = "works"
    CLOSING = "closing"
    BUILDING = "building"

    NO_PROXY = "no_proxy"
    PROXY_NOT_READY = "proxy_not_ready"
    ENGINE_DOWN = "engine_down"
    ENGINE_FAILS = "engine_fails"
    NO_TOOL_PARSER = "no_tool_parser"
    ANSWER_UNUSABLE = "answer_unusable"
    CALL_REFUSED = "call_refused"
    CALL_FAILED = "call_failed"
    REQUESTS_REFUSED = "requests_refused"

    CANCELLED = "cancelled"
    EARLY_STOP = "early_stop"
    NEVER_OPENED = "never_opened"
    NO_WORKER_IN_TIME = "no_worker_in_time"
    OUT_OF_TIME = "out_of_time"
    WORKER_LOST = "worker_lost"
    WORKER_HUNG = "worker_hung"
    KEY_REFUSED = "key_refused"
    MODEL_FAILED = "model_failed"
    HARNESS_FAILED = "harness_failed"
    LIMIT_EXCEEDED = "limit_exceeded"
    PLUG_IN_MISSING = "plug_in_missing"
    BAD_INPUT = "bad_input"
    NOT_READY = "not_ready"
    WORKER_ERROR = "worker_error"
    INIT_OUT_OF_TIME = "init_out_of_time"
    SANDBOX_NOT_STARTED = "sandbox_not_started"
    IMAGE_UNAVAILABLE = "image_unavailable"
    HOST_DISK_FULL = "host_disk_full"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    SANDBOX_FULL = "sandbox_full"
    PREPARE_FAILED = "prepare_failed"
    UNHEALTHY = "unhealthy"
    SANDBOX_LOST = "sandbox_lost"
    EVALUATOR_RAISED = "evaluator_raised"
    NO_REWARD_FOUND = "no_reward_found"
    JUDGE_FAILED = "judge_failed"
    EVALUATION_OUT_OF_TIME = "evaluation_out_of_time"
    EVALUATION_FAILED = "evaluation_failed"
    CALLS_LOST = "calls_lost"
    TABLE_LOST = "table_lost"
    TOO_LARGE = "too_large"
    BUILDER_FAILED = "builder_failed"
    FAILED = "failed"

    CLOSED_WITHOUT_CALL = "closed_without_call"
    NO_CALLS = "no_calls"
    REWARD_NULL = "reward_null"
    NOTHING_TRAINED = "nothing_trained"
    RAW_LOGPROBS = "raw_logprobs"
    OLD_POLICY = "old_policy"
    CALL_MISSING = "call_missing"
    ANSWER_CUT = "answer_cut"
    AFTER_CLOSE = "after_close"
    NO_LOGPROBS = "no_logprobs"
    REPLAYED = "replayed"
    TRUNCATED_SAMPLING = "truncated_sampling"
    FORKED = "forked"
    ABANDONED = "abandoned"
    MOSTLY_MASKED = "mostly_masked"
    VERSION_UNKNOWN = "version_unknown"
    CALLS_UNREAD = "calls_unread"
    COMPLETED = "completed"


@dataclass(frozen=True)
class Entry:
    """One row of the table of causes."""

    cause: Cause
    holds: Callable[[Facts], bool]
    sentence: str
    """The fault, in one or two sentences with `{placeholders}`."""
    way_out: str
    """The remedy, with `{placeholders}`."""
    is_general: bool = False
    """Given only if no other cause holds: it describes the normal course."""
