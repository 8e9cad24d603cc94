"""Sessions as ATIF documents: the Agent Trajectory Interchange Format, version 1.8.

Pure; the format is described in rfcs/0001-trajectory-format.md of github.com/harbor-framework/harbor. The document of a session is its
main conversation. Its other conversations are embedded as `subagent_trajectories`, and the step after which one began refers to it. Each
answered call is one agent step with the token ids and logprobs of the trajectory's token tree. What ATIF has no field for is in `extra`,
by the names that Polar's own records use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from polar.export import tool_arguments
from polar.export.call_tokens import CallTokens, Use, call_tokens
from polar.export.conversations import Conversation, Message, Turn, conversations
from polar.export.json_values import Json, instant
from polar.export.sessions import ExportedCall, ExportedSession
from topics.types.completion import CallOutcome
from topics.types.trajectory import Call

VERSION = "ATIF-v1.8"
IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
SOUNDS = frozenset(
    {"audio/wav", "audio/mpeg", "audio/mp4", "audio/aac", "audio/ogg", "audio/flac", "audio/webm", "audio/aiff"}
)
SOURCES = {"user": "user", "assistant": "agent"}
"""By role; every other role is a system's, but for tool results, which belong to the step that called."""
NO_CALLS = "This session made no model call."


def document(session: ExportedSession, *, with_tokens: bool = True) -> Json:
    """The session's document. Without tokens it has no ids and no logprobs, and is far smaller."""
    tokens = call_tokens(session.trajectory) if with_tokens else {}
    by_id = {call.call_id: tokens[index] for index, call in enumerate(session.trajectory.calls) if index in tokens}
    found = conversations(session.calls)
    if not found:
        return _root(session, [{"step_id": 1, "source": "system", "message": NO_CALLS}], {}, [])
    main, *others = [_steps(one, by_id) for one in found]
    _refer(main, found[1:], session)
    embedded = [
        _document(session, one, steps, f"{session.trajectory.session_id}.{one.first.call.call_id}")
        for one, steps in zip(found[1:], others, strict=True)
    ]
    return _root(session, main, _described(session, found[0], main), embedded)


def _root(session: ExportedSession, steps: list[Json], described: Json, embedded: list[Json]) -> Json:
    """The whole session's document."""
    trajectory = session.trajectory
    facts = {
        "task_id": trajectory.task_id,
        "sample_index": trajectory.sample_index,
        "attempt": trajectory.attempt,
        "status": trajectory.status,
        "reward": trajectory.reward,
        "reward_reason": trajectory.reward_reason,
        "run": trajectory.run,
        "label": trajectory.label,
        "mode": trajectory.mode,
        "builder": trajectory.builder,
        "error": trajectory.error,
        "metadata": trajectory.task_metadata(),
        "artifacts": trajectory.artifacts,
        "accounting": trajectory.accounting,
        "stats": trajectory.stats,
        "traces": [
            {
                "trace_id": trace.trace_id,
                "kind": trace.kind,
                "reward": trace.reward,
                "finish_reason": trace.finish_reason,
            }
            for trace in trajectory.traces
        ],
    }
    extra = _present(facts) | described.get("extra", {})
    return _present(
        {
            "schema_version": VERSION,
            "session_id": trajectory.session_id,
            "trajectory_id": trajectory.session_id,
            "agent": {"name": trajectory.harness, "version": "unknown"},
            "steps": steps,
            **described,
            "extra": msgspec.to_builtins(extra),
            "subagent_trajectories": embedded or None,
        }
    )


def _document(session: ExportedSession, one: Conversation, steps: list[Json], trajectory_id: str) -> Json:
    """An embedded document."""
    return {
        "schema_version": VERSION,
        "session_id": session.trajectory.session_id,
        "trajectory_id": trajectory_id,
        **_described(session, one, steps),
        "steps": steps,
    }


def _described(session: ExportedSession, one: Conversation, steps: Iterable[Json]) -> Json:
    """The fields of a conversation's document that aren't its steps."""
    calls = [turn.call for turn in one.turns]
    gaps = [call.gap for call in calls if call.gap is not None]
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    unanswered = [
        _present(
            {
                "call_id": call.call.call_id,
                "outcome": call.call.outcome,
                "error_code": call.call.error_code,
                "received_at": instant(call.call.received_at),
                "completed_at": instant(call.call.completed_at),
            }
        )
        for call in calls
        if call.call.outcome != CallOutcome.ANSWERED
    ]
    agent = {
        "name": session.trajectory.harness,
        "version": one.first.call.client or "unknown",
        "model_name": next((call.call.model_served for call in calls if call.call.model_served), None),
        "tool_definitions": one.first.tools or None,
    }
    return _present(
        {
            "agent": _present(agent),
            "notes": "Unknown messages: " + "; ".join(gaps) if gaps else None,
            "final_metrics": {
                "total_prompt_tokens": sum(metric["prompt_tokens"] for metric in metrics),
                "total_completion_tokens": sum(metric["completion_tokens"] for metric in metrics),
                "total_steps": len([*steps]),
            },
            "extra": _present({"kind": one.first.call.kind, "unanswered_calls": unanswered or None}),
        }
    )


def _steps(one: Conversation, tokens: dict[str, CallTokens]) -> list[Json]:
    """The conversation's steps, numbered."""
    steps: list[Json] = []
    tools = one.first.tools
    for number, turn in enumerate(one.turns):
        copied = one.history if number == 0 else 0
        _add_read(steps, turn, copied)
        if turn.call.call.outcome == CallOutcome.ANSWERED:
            step = _answer(turn.call, tokens.get(turn.call.call.call_id))
            if turn.call.tools != tools:
                tools = turn.call.tools
                step["extra"]["tool_definitions"] = tools
            steps.append(step)
    if not steps:
        steps.append({"source": "system", "message": "", "extra": {"unanswered": True}})
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    return [{"step_id": step["step_id"], **step} for step in steps]


def _add_read(steps: list[Json], turn: Turn, copied: int) -> None:
    """Add what a prompt adds. The first `copied` messages, and answers that no call here sampled, happened elsewhere."""
    for at, message in enumerate(turn.added):
        if message["role"] == "tool" and (step := _caller(steps, message.get("tool_call_id"))) is not None:
            _observe(step, message)
            continue
        step = {"timestamp": instant(turn.call.call.received_at), **_read(message)}
        if at < copied or step["source"] == "agent":
            step["is_copied_context"] = True
            # Nobody here knows when it was said.
            del step["timestamp"]
        steps.append(step)


def _caller(steps: list[Json], tool_call_id: str | None) -> Json | None:
    """The newest step that made the tool call; without any, the last step if it is an agent's."""
    for step in reversed(steps):
        if any(call["tool_call_id"] == tool_call_id for call in step.get("tool_calls") or ()):
            return step
    return steps[-1] if steps and steps[-1]["source"] == "agent" else None


def _read(message: Message) -> Json:
    """A step of a message that a prompt holds."""
    if message["role"] == "tool":
        step: Json = {"source": "system", "message": ""}
        _observe(step, message)
        return step
    if message["role"] == "assistant":
        return {"source": "agent", **_assistant_fields(message)}
    return {"source": SOURCES.get(message["role"], "system"), "message": _content(message.get("content"))}


def _assistant_fields(message: Message) -> Json:
    """The fields of an assistant's message."""
    calls = [_tool_call(call) for call in message.get("tool_calls") or ()]
    return _present(
        {
            "message": _content(message.get("content")),
            "reasoning_content": message.get("reasoning"),
            "tool_calls": calls or None,
        }
    )


def _tool_call(call: Json) -> Json:
    """Arguments that aren't a JSON object are kept as they were sampled, in `extra`."""
    function = call["function"]
    sampled = function.get("arguments", "")
    made = {"tool_call_id": call["id"], "function_name": function["name"]}
    if (arguments := tool_arguments.parsed(sampled)) is not None:
        return made | {"arguments": arguments}
    return made | {"arguments": {}, "extra": {"arguments": sampled}}


def _observe(step: Json, message: Message) -> None:
    """Add a tool's result to the step that it follows; a result names only a call of that step."""
    named = message.get("tool_call_id")
    result: Json = {"content": _content(message.get("content"))}
    if named in [call["tool_call_id"] for call in step.get("tool_calls") or ()]:
        result = {"source_call_id": named, **result}
    elif named is not None:
        result["extra"] = {"tool_call_id": named}
    step.setdefault("observation", {"results": []})["results"].append(result)


def _answer(exported: ExportedCall, tokens: CallTokens | None) -> Json:
    """The step of an answered call."""
    call, record = exported.call, exported.record
    message = exported.answer
    if message is None and record is not None and record.answer:
        message = msgspec.json.decode(record.answer)
    ids: Json = {}
    if tokens is not None:
        ids = {
            "prompt_token_ids": tokens.prompt.tolist(),
            "completion_token_ids": tokens.sampled.tolist(),
            "logprobs": None if tokens.logprobs is None else tokens.logprobs.tolist(),
        }
    metrics = {
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.sampled_tokens,
        **_present(ids),
        "extra": _sampling(call, [] if tokens is None else tokens.uses),
    }
    return _present(
        {
            "timestamp": instant(call.completed_at),
            "source": "agent",
            "model_name": call.model_served,
            "reasoning_effort": None if record is None else record.reasoning_effort,
            **({"message": ""} if message is None else _assistant_fields(message)),
            "metrics": metrics,
            "llm_call_count": 1,
            "extra": _placed(call),
        }
    )


def _placed(call: Call) -> Json:
    return _present(
        {
            "call_id": call.call_id,
            "kind": call.kind,
            "dialect": call.dialect,
            "parent": call.parent,
            "branch": call.branch,
            "finish_reason": call.finish_reason,
            "reward": call.reward,
            "received_at": instant(call.received_at),
        }
    )


def _sampling(call: Call, uses: Iterable[Use]) -> Json:
    """How the call was sampled, and `uses`: where its tokens are trained, or why they are masked."""
    facts = {
        "policy_version": call.policy_version,
        "publication": call.publication,
        "policy_spans": call.policy_spans or None,
        "logprobs_mode": call.logprobs_mode,
        "sampling": call.sampling,
        "prompt_doubt": call.prompt_doubt,
        "uses": [_present({"start": u.start, "end": u.end, "trace_id": u.trace_id, "masked": u.masked}) for u in uses]
        or None,
    }
    made: Json = msgspec.to_builtins(_present(facts))
    return made


def _refer(main: list[Json], others: Iterable[Conversation], session: ExportedSession) -> None:
    """Add a reference to each other conversation, at the last sampled step before it began, or at the first step."""
    sampled = [(step["extra"]["call_id"], step) for step in main if "metrics" in step]
    received = {call.call_id: call.received_at for call in session.trajectory.calls}
    for one in others:
        began = one.first.call.received_at
        before = [step for call_id, step in sampled if received[call_id] <= began]
        step = before[-1] if before else main[0]
        reference = {"trajectory_id": f"{session.trajectory.session_id}.{one.first.call.call_id}"}
        result = {"subagent_trajectory_ref": [reference], "extra": {"kind": one.first.call.kind}}
        step.setdefault("observation", {"results": []})["results"].append(result)


def _content(content: Any) -> str | list[Json]:
    """A message's content: text, or parts."""
    if isinstance(content, list):
        return [*_parts(content)]
    return content or ""


def _parts(parts: Iterable[Json]) -> Iterator[Json]:
    """Parts of a message. A medium whose type ATIF doesn't know, or nobody knows, becomes a text that names it."""
    for part in parts:
        if part["type"] == "text":
            yield {"type": "text", "text": part["text"]}
            continue
        url = part[part["type"]]["url"]
        kind, known = ("image", IMAGES) if part["type"] == "image_url" else ("audio", SOUNDS)
        media_type = url[len("data:") :].partition(";")[0].lower() if url.startswith("data:") else None
        if media_type in known:
            yield {"type": kind, "source": {"media_type": media_type, "path": url}}
        else:
            shown = url if media_type is None else f"{media_type}, {len(url)} characters"
            yield {"type": "text", "text": f"[{kind}: {shown}]"}


def _present(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
