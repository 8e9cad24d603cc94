"""A story as one JSON document, for programs.

`messages` holds each message once: `{parent, message}`, `parent` an index into it or null; a call's request is the path to its `asked`,
its answer `said`. A call's prompt is the first `shared_tokens` of its `base`'s prompt and sampled tokens, then `prompt_rest`. Logprobs
that are no finite number are null. Fields may only be added.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from polar.show.artifacts import size_of
from polar.show.detokenize import detokenize
from polar.show.fields import picked
from polar.show.runs import Run, runs
from polar.show.story import CallStory, Story
from polar.show.trajectory import line as trajectory_line
from topics.completions import RefusedRequest
from topics.environment import blob_store
from topics.environment.settings import Settings
from topics.types.completion import Completion
from topics.types.errors import NotReadyError
from topics.types.tokens import unpack_ids, unpack_logprobs
from topics.types.trajectory import ROOT, Trace, Trajectory

PLAN = "harness builder mode output run"
"""Fields of the task's plan."""


def document(story: Story, settings: Settings, *, with_texts: bool, with_tokens: bool = True) -> dict[str, Any]:
    """All of it; `with_texts`: the runs' texts too, null with `no_text` where they aren't to be had.

    Without tokens a trace has their number, `tokens`, and no runs: the prompts of a long `per_request` session are gigabytes of integers.
    """
    session, task, plan, trajectory = story.session, story.task, story.task.plan, story.trajectory
    blobs = blob_store.of(settings)
    found: dict[str, Any] = {
        **picked(session, "session_id task_id sample_index"),
        "num_samples": task.num_samples,
        **(picked(plan, PLAN) if plan else dict.fromkeys(PLAN.split())),
        **picked(session, "label phase status attempt past_claims reward"),
        "error": msgspec.to_builtins((trajectory.error if trajectory else None) or session.error),
        "exit_code": session.exit_code,
        **picked(session, "backend unenforced run_warning"),
        "reward_reason": session.reward_reason,
        "evaluation_error": msgspec.to_builtins(session.evaluation_error),
        "accounting": msgspec.structs.asdict(session.accounting),
        "notes": story.notes,
        "calls": [call_document(call, with_tokens=with_tokens) for call in story.calls],
        "refused_requests": [refused_document(request) for request in story.refused],
        "messages": [{"parent": _index(one.parent), "message": one.body} for one in story.messages],
        "artifacts": [{"name": name, "ref": ref, "size": size_of(blobs, ref)} for name, ref in story.artifacts.items()],
        **({"traces": None, "stats": None} if trajectory is None else _of_trajectory(trajectory, with_tokens)),
    }
    if trajectory is not None and with_tokens:
        for written, trace in zip(found["traces"], trajectory.traces, strict=True):
            written |= _runs(trajectory, trace, settings, with_texts)
    return found


def call_document(story: CallStory, *, with_tokens: bool = True) -> dict[str, Any]:
    call = story.call
    return {
        "number": story.number,
        "call_id": call.call_id,
        "parent_id": call.parent,
        **picked(call, "branch kind outcome error_code client dialect received_at completed_at"),
        "latency_ms": call.completed_at - call.received_at,
        **picked(call, "prompt_tokens sampled_tokens finish_reason policy_version publication"),
        "policy_spans": [msgspec.structs.asdict(span) for span in call.policy_spans],
        **picked(
            call,
            "realigned model_served sampling reward engine logprobs_mode media routed_experts sampling_mask uncaptured",
        ),
        "plain": call.sampling.plain,
        "masked": story.masked,
        "disowned": story.disowned,
        "late": story.is_late,
        "gap": story.gap,
        "asked": _index(story.asked),
        "said": story.said,
        "tools": story.tools,
        "record": None if story.record is None else _record(story.record, with_tokens),
    }


def refused_document(request: RefusedRequest) -> dict[str, Any]:
    return picked(request, "refused_at method path status code message client requests")


def _record(record: Completion, with_tokens: bool) -> dict[str, Any]:
    """Fields of a call that only the log has."""
    tokens: dict[str, Any] = {}
    if with_tokens:
        logprobs = unpack_logprobs(record.logprobs).tolist()
        tokens = {
            "prompt_rest": unpack_ids(record.prompt.rest).tolist(),
            "sampled": unpack_ids(record.sampled).tolist(),
            "logprobs": [one if math.isfinite(one) else None for one in logprobs],
        }
    return {
        **picked(record, "attempt claim_id engine model_requested kind_rule stream lineage error"),
        "base": record.prompt.base,
        "shared_tokens": record.prompt.shared,
        **tokens,
        "logprobs_mode": record.logprobs_mode,
    }


def _of_trajectory(trajectory: Trajectory, with_tokens: bool) -> dict[str, Any]:
    """`traces` as `polar trajectories --format jsonl` has them."""
    line = trajectory_line(trajectory, with_tokens=with_tokens)
    return {name: line[name] for name in ("traces", "stats", "metadata")}


def _runs(trajectory: Trajectory, trace: Trace, settings: Settings, with_texts: bool) -> dict[str, Any]:
    found = runs(trajectory, trace)
    if not with_texts:
        return {"runs": [_run(run) for run in found]}
    try:
        texts = detokenize(settings, [run.ids for run in found])
    except NotReadyError as why:
        return {"runs": [_run(run) | {"text": None} for run in found], "no_text": str(why)}
    return {"runs": [_run(run) | {"text": text} for run, text in zip(found, texts, strict=True)]}


def _run(run: Run) -> dict[str, Any]:
    return {
        "start": run.start,
        "end": run.start + len(run.ids),
        "call_id": run.call_id,
        "trained": run.is_trained,
        "why_not": run.why_not,
    }


def _index(message: int) -> int | None:
    return None if message == ROOT else message
