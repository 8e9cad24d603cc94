"""Sessions as samples of an Inspect log (checked with inspect_ai 0.3.285), without its package.

Pure. A task is a sample and each of its sessions an epoch of it. A sample's messages are the session's main conversation; every call is a
model event. As in logs that Inspect itself condenses, each message of the events is stored once, and an event names ranges of them.
Inspect has no field for token ids: a logprob's `token` is the id as text.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from polar.export import tool_arguments
from polar.export.call_tokens import CallTokens, call_tokens
from polar.export.conversations import Message, conversations
from polar.export.json_values import Json, instant
from polar.export.sessions import ExportedCall, ExportedSession
from topics.types.completion import CallOutcome
from topics.types.session import Status
from topics.types.trajectory import Call, Trajectory

STOPS = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls", "content_filter": "content_filter"}
"""Inspect's reasons by ours."""
SCORE = "reward"
SUMMARY = (
    "id",
    "epoch",
    "input",
    "target",
    "metadata",
    "scores",
    "model_usage",
    "role_usage",
    "started_at",
    "completed_at",
    "total_time",
    "uuid",
)
"""Fields that a sample's summary has of the sample."""
UNKNOWN = "unknown"
INPUT = 500
"""Most characters of the input in a summary: the viewer reads all summaries at once."""


@dataclass
class _Pool:
    """All messages of a sample, each once."""

    messages: list[Json] = field(default_factory=list)
    known: dict[bytes, int] = field(default_factory=dict)

    def add(self, message: Message) -> int:
        """The message's index."""
        key = msgspec.json.encode(message)
        if key not in self.known:
            self.known[key] = len(self.messages)
            self.messages.append({"id": str(len(self.messages)), **_message(message)})
        return self.known[key]

    def ranges(self, messages: Iterable[Message]) -> list[list[int]]:
        """`[start, end)` of each run of consecutive indexes."""
        found: list[list[int]] = []
        for index in map(self.add, messages):
            if found and found[-1][1] == index:
                found[-1][1] += 1
            else:
                found.append([index, index + 1])
        return found


def sample(session: ExportedSession) -> Json:
    """A session's sample."""
    trajectory = session.trajectory
    pool = _Pool()
    tokens = call_tokens(trajectory)
    events = [_event(call, tokens.get(index), pool, _began(trajectory)) for index, call in enumerate(session.calls)]
    main = next(iter(conversations(session.calls)), None)
    messages = [] if main is None else [pool.messages[pool.add(message)] for message in main.whole]
    answer = next((turn.call for turn in reversed(main.turns) if turn.call.answer), None) if main else None
    return {
        "id": trajectory.task_id,
        "epoch": trajectory.sample_index + 1,
        "input": next((_text(message["content"]) for message in messages if message["role"] == "user"), ""),
        "target": "",
        "messages": messages,
        "output": {} if answer is None else _output(answer, None),
        "scores": _scores(trajectory),
        "metadata": _metadata(session),
        "store": {},
        "events": events,
        "model_usage": _usage(trajectory.calls),
        "role_usage": {},
        **_times(trajectory),
        "uuid": trajectory.session_id,
        "error": _error(trajectory),
        "attachments": {},
        "events_data": {"messages": pool.messages, "calls": []},
    }


def summary(made: Json) -> Json:
    """A sample's entry in the list of samples."""
    short = {name: made[name] for name in SUMMARY if name in made}
    return {
        **short,
        "input": short["input"][:INPUT],
        "metadata": {},
        "error": None if made["error"] is None else made["error"]["message"],
        "completed": True,
        "message_count": len(made["messages"]),
    }


def header(name: str, summaries: Sequence[Json], agents: Iterable[str]) -> Json:
    """The log without samples: `name` is what Inspect calls the task, `agents` are the harnesses."""
    usage: Counter[tuple[str, str]] = Counter()
    for one in summaries:
        for model, counts in one["model_usage"].items():
            usage.update({(model, kind): count for kind, count in counts.items()})
    models = sorted({model for model, _ in usage})
    rewards = [one["scores"][SCORE]["value"] for one in summaries if one["scores"]]
    began = min((one["started_at"] for one in summaries if "started_at" in one), default=instant(0))
    ended = max((one["completed_at"] for one in summaries if "completed_at" in one), default=instant(0))
    ids = [*dict.fromkeys(one["id"] for one in summaries)]
    score = {
        "name": SCORE,
        "scorer": SCORE,
        "scored_samples": len(rewards),
        "unscored_samples": len(summaries) - len(rewards),
        "params": {},
        "metrics": {"mean": {"name": "mean", "value": sum(rewards) / len(rewards), "params": {}}} if rewards else {},
    }
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": _id(name, "eval"),
            "run_id": _id(name, "run"),
            "created": began,
            "task": name,
            "task_id": _id(name, "task"),
            "task_version": 0,
            "task_attribs": {},
            "task_args": {},
            "solver": ", ".join(sorted(set(agents))) or None,
            "dataset": {"name": name, "samples": len(ids), "sample_ids": ids, "shuffled": False},
            "model": ", ".join(models) or UNKNOWN,
            "model_generate_config": {},
            "model_args": {},
            "config": {"epochs": max((one["epoch"] for one in summaries), default=1)},
            "packages": {},
            "scorers": [{"name": SCORE}],
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {"total_samples": len(summaries), "completed_samples": len(summaries), "scores": [score]},
        "stats": {
            "started_at": began,
            "completed_at": ended,
            "model_usage": {
                model: {kind: count for (of, kind), count in usage.items() if of == model} for model in models
            },
        },
    }


def _event(exported: ExportedCall, tokens: CallTokens | None, pool: _Pool, began: int) -> Json:
    """A call as a model event; `began`: when the session's first call was received, unix ms."""
    call = exported.call
    ranges = pool.ranges(exported.messages)
    is_answered = exported.answer is not None
    if exported.answer is not None:
        pool.add(exported.answer)
    facts = {
        "call_id": call.call_id,
        "kind": call.kind,
        "dialect": call.dialect,
        "parent": call.parent,
        "branch": call.branch,
        "policy_version": call.policy_version,
        "publication": call.publication,
        "logprobs_mode": call.logprobs_mode,
        "sampling": call.sampling,
        "reward": call.reward,
        "gap": exported.gap,
        "uses": [] if tokens is None else tokens.uses,
    }
    return {
        "uuid": call.call_id,
        "timestamp": instant(call.received_at),
        "working_start": (call.received_at - began) / 1000,
        "event": "model",
        "model": call.model_served or UNKNOWN,
        "role": None if call.kind == "main" else call.kind,
        "input": [],
        "input_refs": ranges,
        "tools": [{"name": tool["function"]["name"], "description": ""} for tool in exported.tools],
        "tool_choice": "auto",
        "config": _config(call),
        "output": _output(exported, tokens) if is_answered else {"model": call.model_served or UNKNOWN, "choices": []},
        "error": None if call.outcome == CallOutcome.ANSWERED else f"{call.outcome}: {call.error_code}",
        "completed": instant(call.completed_at),
        "working_time": (call.completed_at - call.received_at) / 1000,
        "metadata": msgspec.to_builtins(facts),
    }


def _config(call: Call) -> Json:
    sampling = call.sampling
    known = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "stop_seqs": sampling.stop or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _output(exported: ExportedCall, tokens: CallTokens | None) -> Json:
    """An answered call's output; with tokens also its logprobs."""
    call = exported.call
    assert exported.answer is not None, "the caller has checked that there is an answer"
    choice: Json = {
        "message": {"id": call.call_id, **_message(exported.answer), "model": call.model_served, "source": "generate"},
        "stop_reason": STOPS.get(call.finish_reason or "", UNKNOWN),
    }
    if tokens is not None and tokens.logprobs is not None:
        pairs = zip(tokens.sampled.tolist(), tokens.logprobs.tolist(), strict=True)
        choice["logprobs"] = {"content": [{"token": str(token), "logprob": logprob} for token, logprob in pairs]}
    return {
        "model": call.model_served or UNKNOWN,
        "choices": [choice],
        "completion": _text(choice["message"]["content"]),
        "usage": _counts(call.prompt_tokens, call.sampled_tokens),
        "time": (call.completed_at - call.received_at) / 1000,
    }


def _message(message: Message) -> Json:
    """A canonical message in Inspect's form."""
    role = "system" if message["role"] == "developer" else message["role"]
    made: Json = {"role": role, "content": _content(message)}
    if role == "tool":
        made["tool_call_id"] = message.get("tool_call_id")
    if calls := message.get("tool_calls"):
        made["tool_calls"] = [*map(_tool_call, calls)]
    return made


def _content(message: Message) -> str | list[Json]:
    content = message.get("content") or ""
    reasoning = message.get("reasoning")
    if isinstance(content, str) and not reasoning:
        return content
    parts: list[Json] = [{"type": "text", "text": content}] if isinstance(content, str) else [*_parts(content)]
    return [*([{"type": "reasoning", "reasoning": reasoning}] if reasoning else []), *parts]


def _parts(parts: Iterable[Json]) -> Iterator[Json]:
    for part in parts:
        if part["type"] == "text":
            yield {"type": "text", "text": part["text"]}
        elif part["type"] == "image_url":
            yield {"type": "image", "image": part["image_url"]["url"]}
        else:
            url = part["audio_url"]["url"]
            yield {"type": "audio", "audio": url, "format": "mp3" if "mp3" in url[:20] or "mpeg" in url[:20] else "wav"}


def _text(content: str | Sequence[Json]) -> str:
    return (
        content if isinstance(content, str) else "\n".join(part["text"] for part in content if part["type"] == "text")
    )


def _tool_call(call: Json) -> Json:
    """Arguments that aren't a JSON object are kept as they were sampled, with Inspect's mark of a parse error."""
    function = call["function"]
    sampled = function.get("arguments", "")
    made = {"id": call["id"], "function": function["name"], "type": "function"}
    if (arguments := tool_arguments.parsed(sampled)) is not None:
        return made | {"arguments": arguments}
    return made | {"arguments": {"arguments": sampled}, "parse_error": "the arguments are no JSON object"}


def _scores(trajectory: Trajectory) -> Json:
    if trajectory.reward is None:
        return {}
    return {SCORE: {"value": trajectory.reward, "explanation": trajectory.reward_reason, "history": []}}


def _metadata(session: ExportedSession) -> Json:
    trajectory = session.trajectory
    tools = {tool["function"]["name"]: tool for call in session.calls for tool in call.tools}
    facts = {
        "session_id": trajectory.session_id,
        "run": trajectory.run,
        "label": trajectory.label,
        "harness": trajectory.harness,
        "status": trajectory.status,
        "attempt": trajectory.attempt,
        "stats": trajectory.stats,
        "accounting": trajectory.accounting,
        "artifacts": trajectory.artifacts,
        "task": trajectory.task_metadata(),
        "tools": [*tools.values()],
    }
    made: Json = msgspec.to_builtins(facts)
    return made


def _usage(calls: Iterable[Call]) -> Json:
    usage: dict[str, tuple[int, int]] = {}
    for call in calls:
        model = call.model_served or UNKNOWN
        read, sampled = usage.get(model, (0, 0))
        usage[model] = read + call.prompt_tokens, sampled + call.sampled_tokens
    return {model: _counts(*counts) for model, counts in usage.items()}


def _counts(read: int, sampled: int) -> Json:
    return {"input_tokens": read, "output_tokens": sampled, "total_tokens": read + sampled}


def _began(trajectory: Trajectory) -> int:
    return min((call.received_at for call in trajectory.calls), default=0)


def _times(trajectory: Trajectory) -> Json:
    """From the first call to the last answer; nothing without calls."""
    if not trajectory.calls:
        return {}
    began, ended = _began(trajectory), max(call.completed_at for call in trajectory.calls)
    return {"started_at": instant(began), "completed_at": instant(ended), "total_time": (ended - began) / 1000}


def _error(trajectory: Trajectory) -> Json | None:
    if trajectory.status is Status.COMPLETED:
        return None
    error = trajectory.error
    reason = "" if error is None else f": {error.stage}: {error.message}"
    return {"message": f"{trajectory.status}{reason}", "traceback": "", "traceback_ansi": ""}


def _id(name: str, kind: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"polar:{kind}:{name}"))
