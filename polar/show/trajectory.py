"""A trajectory as a document: a line of JSON, or the fields of a row."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from polar.show.fields import picked
from topics.types.building import TRAINED
from topics.types.completion import CallOutcome
from topics.types.trajectory import ExpandedTrace, Span, Trajectory, expand


def line(trajectory: Trajectory, *, with_tokens: bool = True) -> dict[str, Any]:
    """A trajectory as a JSON document. `token_ids`, `loss_mask` and `logprobs` of a trace have equal lengths.

    Without tokens it has their number instead, `tokens`.
    """
    document = fields(trajectory, msgspec.to_builtins, with_tokens=with_tokens)
    for trace in document["traces"] if with_tokens else ():
        trace |= {name: trace[name].tolist() for name in ("token_ids", "loss_mask", "logprobs")}
    return document | {"metadata": json.loads(trajectory.metadata)}


def fields(trajectory: Trajectory, as_dict: Callable[[Any], Any], *, with_tokens: bool = True) -> dict[str, Any]:
    """The fields of a line of JSON and of a row of Parquet, with tokens as arrays and metadata as bytes. `as_dict` converts a struct.

    Without tokens the arrays of one trace at a time are in memory.
    """
    return {
        **picked(trajectory, "session_id task_id sample_index num_samples attempt status reward"),
        "error": trajectory.error and as_dict(trajectory.error),
        **picked(trajectory, "builder harness"),
        "traces": [_trace(expand(trajectory, trace), as_dict, with_tokens) for trace in trajectory.traces],
        "stats": as_dict(trajectory.stats),
        "metadata": trajectory.metadata,
        **picked(trajectory, "run label"),
        "side_calls": side_calls(trajectory),
    }


def _trace(expanded: ExpandedTrace, as_dict: Callable[[Any], Any], with_tokens: bool) -> dict[str, Any]:
    tokens = {"token_ids": expanded.token_ids, "loss_mask": expanded.loss_mask, "logprobs": expanded.logprobs}
    versions = dict.fromkeys(span.policy_version for span in expanded.spans)
    return {
        "trace_id": expanded.trace.trace_id,
        **(tokens if with_tokens else {"tokens": len(expanded.token_ids)}),
        "policy_versions": list(versions),
        "calls": [_span(span, as_dict) for span in expanded.spans],
        **picked(expanded.trace, "kind reward finish_reason"),
        "media": [as_dict(medium) for medium in expanded.media],
    }


def _span(span: Span, as_dict: Callable[[Any], Any]) -> dict[str, Any]:
    return {
        "call_id": span.call.call_id,
        **picked(span, "start end policy_version publication"),
        "sampling": as_dict(span.call.sampling),
        **picked(span.call, "engine logprobs_mode"),
        "has_media": bool(span.call.media),
        "plain": span.call.sampling.plain,
    }


def side_calls(trajectory: Trajectory) -> int:
    """The number of answered calls of kinds that aren't trained by default."""
    return sum(call.outcome is CallOutcome.ANSWERED and call.kind not in TRAINED for call in trajectory.calls)
