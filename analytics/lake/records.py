"""Converts rows back to records: the inverse of `analytics/lake/rows.py`.

Pure. A row is a dict by column, as pyarrow's `to_pylist(maps_as_pydicts="strict")` gives it; columns that an older file lacks are null, and
then the record's field has its default. Not in the lake, and so not in the records: `Stats.filtered`, and an instant outside the years 1970
to 9999, which becomes 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from analytics.lake.rows import Row
from topics.types.completion import (
    CallError,
    CallOutcome,
    Completion,
    Medium,
    MessageDelta,
    PolicySpan,
    Sampling,
    TokenDelta,
)
from topics.types.errors import Kind, SessionError
from topics.types.session import Accounting, Status
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import Call, Node, Stats, Trace, Trajectory

S = TypeVar("S", bound=msgspec.Struct)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def completion(row: Row) -> Completion:
    """The call of a row of `completions`."""
    return _struct(
        Completion,
        row,
        outcome=CallOutcome(row["outcome"]),
        received_at=_milliseconds(row["received_at"]),
        completed_at=_milliseconds(row["completed_at"]),
        prompt=TokenDelta(pack_ids(row["prompt_rest"]), row["shared_tokens"], row["base"], row["prompt_chain"]),
        messages=MessageDelta(row["messages_rest"].encode(), row["messages_shared"], row["messages_base"]),
        sampled=pack_ids(row["sampled"]),
        logprobs=pack_logprobs(row["logprobs"]),
        answer=(row["answer"] or "").encode(),
        tools=None if row["tools"] is None else row["tools"].encode(),
        sampling=_struct(Sampling, row, logit_bias=msgspec.json.decode(row["logit_bias"] or "{}")),
        policy_spans=_spans(row),
        media=_media(row),
        error=None
        if row["error_code"] is None
        else CallError(row["error_code"], row["error_message"], row["error_status"]),
    )


def trajectory(row: Row, calls: Iterable[Row], nodes: Iterable[Row], traces: Iterable[Row]) -> Trajectory:
    """The trajectory of a row of `trajectories`, with its rows of `trajectory_calls`, `nodes` and `traces`.

    `calls` and `nodes` are in the order of their index; `traces` in any, and come in the order of their leaves.
    """
    made = [
        _struct(
            Call,
            call,
            parent=call["parent_id"],
            received_at=_milliseconds(call["received_at"]),
            completed_at=_milliseconds(call["completed_at"]),
            sampling=msgspec.json.decode(call["sampling"], type=Sampling),
            policy_spans=_spans(call),
        )
        for call in calls
    ]
    index = {call.call_id: number for number, call in enumerate(made)}
    return _struct(
        Trajectory,
        row,
        status=Status(row["status"]),
        error=None if row["error_code"] is None else _error(row),
        metadata=row["metadata"].encode(),
        stats=_struct(Stats, row),
        accounting=_struct(Accounting, row),
        calls=made,
        nodes=[
            _struct(
                Node,
                node,
                tokens=pack_ids(node["tokens"]),
                logprobs=None if node["logprobs"] is None else pack_logprobs(node["logprobs"]),
                call=None if node["call_id"] is None else index[node["call_id"]],
                media=_media(node),
            )
            for node in nodes
        ],
        traces=[_struct(Trace, trace) for trace in sorted(traces, key=lambda trace: int(trace["leaf"]))],
    )


def _struct(of: type[S], row: Row, **more: Any) -> S:
    """A struct of the columns that have its fields' names; null means the field's default."""
    named = {name: row[name] for name in of.__struct_fields__ if row.get(name) is not None}
    return of(**named | more)


def _error(row: Row) -> SessionError:
    return SessionError(
        row["error_stage"], Kind(row["error_kind"]), row["error_code"], row["error_message"], row["error_retryable"]
    )


def _spans(row: Row) -> list[PolicySpan]:
    spans = row["policy_spans"] or []
    publications = row["span_publications"] or [None] * len(spans)
    return [PolicySpan(**span, publication=publication) for span, publication in zip(spans, publications, strict=True)]


def _media(row: Row) -> list[Medium]:
    return [] if row["media"] is None else msgspec.json.decode(row["media"], type=list[Medium])


def _milliseconds(at: datetime | None) -> int:
    return 0 if at is None else (at - EPOCH) // timedelta(milliseconds=1)
