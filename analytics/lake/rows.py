"""Converts a record to rows, which contain every field of the record; token lists stay packed bytes.

Pure. A fact, a call or a group gives one row; a trajectory gives one row and one for each call, trace and node. Records of
`polar.completions` that only control the builder (`Open`, `Build`, `CloseGroup`, `Emitted`) give none: their result is the trajectory. Of
`polar.fleet` only publications have rows, and of `polar.workers` only heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec

from topics import events
from topics.completions import Disowned, RefusedRequest
from topics.dead_letters import Letter, Replay
from topics.events import Fact
from topics.fleet import PolicyVersion
from topics.log import kafka
from topics.types.completion import CallError, Completion, Sampling
from topics.types.errors import SessionError
from topics.types.session import Accounting, Stage, task_id_of
from topics.types.tokens import count, pack_ids
from topics.types.trajectory import ROOT, Call, GroupFinished, Node, Stats, Trajectory, answer_offsets, path
from topics.verifications import Verification
from topics.workers import Heartbeat

Row = dict[str, Any]
"""Values by column: packed bytes for lists of numbers, ms for timestamps, a dict for a map, text or UTF-8 bytes for text."""
Rows = Iterator[tuple[str, Row]]
"""Rows with the name of their table."""

FINISHED = {events.InitFinished: Stage.INIT, events.RunFinished: Stage.RUN, events.Evaluated: Stage.EVALUATE}
JSON_FIELDS = ("builder_config", "metadata")
"""Fields of a task's plan that contain JSON."""


def origin(record: kafka.Record) -> Row:
    """The columns of every row: its record's partition, offset and timestamp."""
    return {"log_partition": record.partition, "log_offset": record.offset, "logged_at": record.timestamp}


def of_record(record: object, at: Row, output: str | None = None) -> Rows:
    """A decoded record's rows. `at`: its origin. `output`: the suffix of a trajectories topic.

    Records of `polar rebuild` give no rows: their sessions would be in the lake twice. Raises ValueError or LookupError for a trajectory
    whose indexes make no tree.
    """
    match record:
        case Trajectory(rebuilt_with=bytes()) | GroupFinished(rebuilt=True):
            return
        case Completion():
            yield "completions", at | _completion(record)
        case Disowned():
            values = _fields(record, "call_id", "session_id", "claim_id", "reason")
            yield "disowned", at | values | {"task_id": task_id_of(record.session_id)}
        case RefusedRequest():
            values = _fields(record, *RefusedRequest.__struct_fields__)
            yield "refused_requests", at | values | {"task_id": task_id_of(record.session_id)}
        case Trajectory():
            yield from _trajectory(record, at | {"output": output})
        case GroupFinished():
            values = _fields(record, "task_id", "num_samples", "session_ids", "rewards", "run")
            statuses = [status.value for status in record.statuses]
            yield "groups", at | {"output": output} | values | {"statuses": statuses}
        case Verification():
            computed = {"task_id": task_id_of(record.session_id), "limit_nats": record.limit}
            yield "verifications", at | _fields(record, *VERIFICATION_FIELDS) | computed
        case PolicyVersion():
            # Only the record's own rollback has no offset yet.
            is_rollback = any(each.offset is None for each in record.rollbacks)
            published = {"policy_version": record.version, "engine": record.engine, "is_rollback": is_rollback}
            yield "publications", at | published
        case Heartbeat():
            yield "heartbeats", at | _heartbeat(record)
        case Letter():
            yield "dead_letters", at | _letter(record)
        case Replay():
            yield "dead_letter_replays", at | {"letter_id": record.id, "sent_to": record.sent_to}
        case _ if isinstance(record, events.RECORDS):
            yield "events", at | _event(record)


def _fields(record: object, *names: str) -> Row:
    """Fields with columns of the same name; None for a missing field."""
    return {name: _plain(getattr(record, name, None)) for name in names}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _prefixed(prefix: str, part: msgspec.Struct | None, of: type[msgspec.Struct]) -> Row:
    """All fields of a part; nulls if the part is None."""
    return {f"{prefix}{name}": _plain(getattr(part, name, None)) for name in of.__struct_fields__}


VERIFICATION_FIELDS = (
    "trace_id", "session_id", "engine", "server", "verified_at", "policy_version", "publication", "tokens", "median", "p99", "largest",
    "over", "logprobs", "unscored", "output",
)  # fmt: skip
HEARTBEAT_FIELDS = ("worker_id", "role", "host", "pid", "address", "leaving")
LETTER_FIELDS = ("reason", "process")
FACT_FIELDS = (
    "fact_id", "session_id", "attempt", "claim_id", "worker_id", "num_samples", "status", "reward", "unenforced",
)  # fmt: skip
FINISH_FIELDS = ("exit_code", "duration_ms")


def _event(fact: Fact) -> Row:
    plan = getattr(fact, "plan", None)
    stage = getattr(fact, "stage", None) or FINISHED.get(type(fact))
    return {
        "fact": str(fact.__struct_config__.tag),
        "task_id": events.task_of(fact),
        "stage": _plain(stage),
        **_fields(fact, *FACT_FIELDS, *FINISH_FIELDS),
        **_fields(plan, "pool", "harness"),
        "run": getattr(plan or fact, "run", None),
        **_prefixed("error_", getattr(fact, "error", None), SessionError),
        "backend": (getattr(fact, "runtime", None) or {}).get("backend"),
        "detail": _detail(fact),
    }


def _detail(fact: Fact) -> bytes:
    """A fact as JSON, without the task's body; fields that contain JSON are embedded as such."""
    values: dict[str, Any] = msgspec.to_builtins(fact, builtin_types=(bytes,))
    values.pop("body", None)
    plan = values.get("plan", {})
    for name in JSON_FIELDS:
        try:
            plan[name] = msgspec.json.decode(plan[name])
        except (KeyError, msgspec.DecodeError):
            continue  # stays base64
    return msgspec.json.encode(values)


COMPLETION_FIELDS = (
    "call_id", "session_id", "attempt", "claim_id", "outcome", "dialect", "engine", "model_requested", "model_served", "kind",
    "kind_rule", "received_at", "completed_at", "sampled", "logprobs", "logprobs_mode", "tools", "finish_reason", "policy_version",
    "lineage", "stream", "choice", "stored_from", "realigned", "stop_sequence", "reasoning_effort", "tool_choice",
    "unsaid_calls", "publication", "prompt_doubt", "routed_experts", "sampling_mask", "uncaptured", "rejects", "client",
)  # fmt: skip


def _completion(call: Completion) -> Row:
    prompt, messages = call.prompt, call.messages
    return {
        **_fields(call, *COMPLETION_FIELDS),
        "task_id": task_id_of(call.session_id),
        "sample_index": _sample_index(call.session_id),
        "base": prompt.base,
        "prompt_tokens": prompt.shared + count(prompt.rest),
        "shared_tokens": prompt.shared,
        "sampled_tokens": count(call.sampled),
        "prompt_rest": prompt.rest,
        "prompt_chain": prompt.chain,
        "messages_base": messages.base,
        "messages_shared": messages.shared,
        "messages_rest": messages.rest,
        "answer": call.answer or None,
        **_spans(call),
        "media": _media(call),
        **_prefixed("", call.sampling, Sampling),
        "logit_bias": msgspec.json.encode(call.sampling.logit_bias) if call.sampling.logit_bias else None,
        **_prefixed("error_", call.error, CallError),
    }


def _spans(call: Completion | Call) -> Row:
    return {
        "policy_spans": [{"version": span.version, "start": span.start, "end": span.end} for span in call.policy_spans],
        "span_publications": [span.publication for span in call.policy_spans],
    }


def _media(of: Completion | Node) -> bytes | None:
    return msgspec.json.encode(of.media) if of.media else None


def _sample_index(session_id: str) -> int | None:
    """The index; None for an id that isn't a session's."""
    index = session_id.rpartition(".")[2]
    return int(index) if index.isascii() and index.isdecimal() and len(index) < 10 else None


def _heartbeat(beat: Heartbeat) -> Row:
    slots = [{"stage": one.stage.value, "pool": one.pool, "slots": one.slots, "free": one.free} for one in beat.stages]
    values = {"in_flight": beat.calls, "slots": slots, "obstacle": beat.obstacle or None}
    return _fields(beat, *HEARTBEAT_FIELDS) | values


def _letter(letter: Letter) -> Row:
    return {
        **_fields(letter, *LETTER_FIELDS),
        "record_key": letter.key,
        "bytes": len(letter.value),
        "field": letter.field or None,
        "source_topic": letter.topic or None,
        "source_partition": letter.partition,
        "source_offset": letter.offset,
    }


TRAJECTORY_FIELDS = (
    "session_id", "task_id", "sample_index", "num_samples", "attempt", "status", "harness", "builder", "reward", "artifacts",
    "metadata", "mode", "reward_reason", "run", "label",
)  # fmt: skip
CALL_FIELDS = (
    "call_id", "branch", "kind", "outcome", "dialect", "received_at", "completed_at", "prompt_tokens", "sampled_tokens",
    "finish_reason", "policy_version", "model_served", "reward", "realigned", "engine", "logprobs_mode", "publication",
    "prompt_doubt", "media", "routed_experts", "sampling_mask", "uncaptured", "client", "error_code",
)  # fmt: skip


def _trajectory(trajectory: Trajectory, at: Row) -> Rows:
    _check_tree(trajectory)
    yield (
        "trajectories",
        {
            **at,
            **_fields(trajectory, *TRAJECTORY_FIELDS),
            **_prefixed("error_", trajectory.error, SessionError),
            **_prefixed("", trajectory.stats, Stats),
            **_prefixed("", trajectory.accounting, Accounting),
        },
    )
    part = at | {"session_id": trajectory.session_id, "task_id": trajectory.task_id}
    calls = trajectory.calls
    for index, call in enumerate(calls):
        sampling = msgspec.json.encode(call.sampling)
        values = {
            "call": index,
            "parent_id": call.parent,
            "sampling": sampling,
            "plain": call.sampling.plain,
        }
        yield "trajectory_calls", part | _fields(call, *CALL_FIELDS) | values | _spans(call)
    offsets = answer_offsets(trajectory.nodes)
    for index, node in enumerate(trajectory.nodes):
        sampler = None if node.call is None else calls[node.call].call_id
        values = {"node": index, "call_id": sampler, "media": _media(node), "answer_offset": offsets[index]}
        yield "nodes", part | _fields(node, "parent", "tokens", "logprobs", "masked") | values
    yield from (("traces", part | row) for row in _traces(trajectory))


def _check_tree(trajectory: Trajectory) -> None:
    """Raise ValueError unless each path leads up to a root: a cycle of nodes has no end."""
    for index, node in enumerate(trajectory.nodes):
        if not ROOT <= node.parent < index:
            raise ValueError(f"node {index} has the parent {node.parent}; a parent comes before its node")
    for trace in trajectory.traces:
        if not 0 <= trace.leaf < len(trajectory.nodes):
            raise ValueError(f"the trace {trace.trace_id} has the leaf {trace.leaf} of {len(trajectory.nodes)} nodes")


def _traces(trajectory: Trajectory) -> Iterator[Row]:
    """The rows of the traces; a node's path is summed once, for all traces through it."""
    nodes = trajectory.nodes
    tokens = [0] * len(nodes)
    calls = [0] * len(nodes)
    sampler: list[int | None] = [None] * len(nodes)
    """The last call that sampled tokens of the path; the nodes of one call are adjacent."""
    for index, node in enumerate(nodes):
        before = node.parent
        above = (0, 0, None) if before == ROOT else (tokens[before], calls[before], sampler[before])
        tokens[index] = above[0] + count(node.tokens)
        is_new = node.call is not None and node.call != above[2]
        calls[index] = above[1] + is_new
        sampler[index] = node.call if is_new else above[2]
    for trace in trajectory.traces:
        indexes = path(trajectory, trace.leaf)
        yield {
            **_fields(trace, "trace_id", "leaf", "kind", "reward", "finish_reason"),
            "path": pack_ids(indexes),
            "starts": pack_ids([tokens[index] - count(nodes[index].tokens) for index in indexes]),
            "trains": pack_ids(trace.trains),
            "tokens": tokens[trace.leaf],
            "trainable_tokens": sum(count(nodes[index].tokens) for index in trace.trains),
            "calls": calls[trace.leaf],
        }
