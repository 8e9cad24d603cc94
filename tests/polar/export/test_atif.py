"""ATIF documents of random sessions, validated by the format's own package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import atif
import msgspec
import numpy as np
import pytest

from polar.export.atif import document
from polar.export.sessions import ExportedCall, ExportedSession
from tests.faithfulness.lived import ids_of
from tests.polar.export.random_sessions import exported
from topics.types.session import Status
from topics.types.trajectory import Call, Trajectory, expand


def every_step(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from made["steps"]
    for embedded in made.get("subagent_trajectories", ()):
        yield from every_step(embedded)


def checked(session: ExportedSession) -> dict[str, Any]:
    """The document as a reader gets it, which the package accepts and writes unchanged."""
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document(session)))
    read = atif.Trajectory.model_validate(made)
    assert read.to_json_dict() == made
    return made


@pytest.mark.parametrize("seed", range(200, 300))
def test_every_answer_is_one_step_with_the_tokens_of_the_trace(seed: int) -> None:
    lived, session = exported(seed)
    trajectory = session.trajectory
    sampled = [step for step in every_step(checked(session)) if "metrics" in step]
    answered = [call.call_id for call in trajectory.calls if call.outcome == "answered"]
    assert sorted(step["extra"]["call_id"] for step in sampled) == sorted(answered)
    in_tree = {trajectory.calls[node.call].call_id for node in trajectory.nodes if node.call is not None}
    trained: dict[str, list[tuple[list[int], list[float]]]] = {}
    for step in sampled:
        metrics, call_id = step["metrics"], step["extra"]["call_id"]
        assert ("prompt_token_ids" in metrics) == (call_id in in_tree)
        if call_id not in in_tree:
            continue
        assert metrics["prompt_token_ids"] == ids_of(lived[call_id].prompt)
        assert metrics["completion_token_ids"] == lived[call_id].sampled
        if lived[call_id].damage == "invalid_logprobs":
            assert [*filter(None, (use.get("masked") for use in metrics["extra"]["uses"]))]
            continue
        assert metrics["logprobs"] == lived[call_id].logprobs
        for use in metrics["extra"]["uses"]:
            assert ("trace_id" in use) != ("masked" in use)
            if "trace_id" in use:
                part = slice(use["start"], use["end"])
                trained.setdefault(use["trace_id"], []).append(
                    (metrics["completion_token_ids"][part], metrics["logprobs"][part])
                )
    for trace in trajectory.traces:
        expanded = expand(trajectory, trace)
        runs = sorted(trained.pop(trace.trace_id), key=lambda run: -run[1][0])
        is_trained = expanded.loss_mask == 1
        assert [token for ids, _ in runs for token in ids] == expanded.token_ids[is_trained].tolist()
        assert np.array([one for _, logprobs in runs for one in logprobs], np.float32).tolist() == (
            expanded.logprobs[is_trained].tolist()
        )
    assert not trained


SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "Fix it."}
LOOK = {
    "role": "assistant",
    "reasoning": "First the files.",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "shell", "arguments": '{"command": "ls"}'}}],
}
FILES = {"role": "tool", "tool_call_id": "a", "content": "x.py"}
DONE = {"role": "assistant", "content": "Done."}


def call(name: str, messages: list[Any], answer: Any, at: int, **fields: Any) -> ExportedCall:
    outcome = "failed" if answer is None else "answered"
    made = Call(name, fields.pop("kind", "main"), outcome, "openai_chat", at, at + 5, **fields)
    return ExportedCall(made, messages, answer, [], None)


def session(*calls: ExportedCall) -> ExportedSession:
    made = Trajectory("t.0", "t", 0, 1, 1, Status.COMPLETED, "prefix_merging", "pi", calls=[one.call for one in calls])
    return ExportedSession(made, list(calls))


def transcript(steps: list[dict[str, Any]]) -> list[str]:
    """A line for each step: its source, its text, and in brackets what it observed."""
    lines = []
    for step in steps:
        said = step["message"] or " ".join(one["function_name"] for one in step.get("tool_calls", ()))
        results = step.get("observation", {}).get("results", ())
        seen = [one.get("content") or one["subagent_trajectory_ref"][0]["trajectory_id"] for one in results]
        copied = "copied " if step.get("is_copied_context") else ""
        lines.append(f"{copied}{step['source']}: {said}" + "".join(f" [{one}]" for one in seen))
    return lines


def test_a_conversation_reads_as_its_steps() -> None:
    first = call("1", [SYSTEM, ASK], LOOK, 10, prompt_tokens=7, sampled_tokens=3, client="pi/1.2", model_served="qwen")
    second = call("2", [SYSTEM, ASK, LOOK, FILES], DONE, 20, prompt_tokens=12, sampled_tokens=2)
    made = checked(session(first, second))
    assert transcript(made["steps"]) == ["system: Be brief.", "user: Fix it.", "agent: shell [x.py]", "agent: Done."]
    assert made["agent"] == {"name": "pi", "version": "pi/1.2", "model_name": "qwen"}
    assert made["final_metrics"] == {"total_prompt_tokens": 19, "total_completion_tokens": 5, "total_steps": 4}
    looked = made["steps"][2]
    assert looked["reasoning_content"] == "First the files."
    assert looked["tool_calls"] == [{"tool_call_id": "a", "function_name": "shell", "arguments": {"command": "ls"}}]
    assert looked["observation"] == {"results": [{"source_call_id": "a", "content": "x.py"}]}
    assert looked["timestamp"] == "1970-01-01T00:00:00.015Z"


def test_other_conversations_are_embedded_where_they_began() -> None:
    title = call("t", [SYSTEM, ASK], {"role": "assistant", "content": "Fixing"}, 5, kind="title")
    first = call("1", [SYSTEM, ASK], LOOK, 10)
    agent = call("s", [SYSTEM, {"role": "user", "content": "List."}], DONE, 16, kind="subagent")
    second = call("2", [SYSTEM, ASK, LOOK, FILES], DONE, 20)
    rewritten = call("3", [SYSTEM, ASK, LOOK | {"content": "I looked."}, FILES], DONE, 30)
    made = checked(session(title, first, agent, second, rewritten))
    assert transcript(made["steps"]) == [
        "system: Be brief. [t.0.t]",
        "user: Fix it.",
        "agent: shell [x.py] [t.0.s]",
        "agent: Done. [t.0.3]",
    ]
    embedded = {one["trajectory_id"]: transcript(one["steps"]) for one in made["subagent_trajectories"]}
    assert embedded == {
        "t.0.t": ["system: Be brief.", "user: Fix it.", "agent: Fixing"],
        "t.0.s": ["system: Be brief.", "user: List.", "agent: Done."],
        "t.0.3": ["copied system: Be brief.", "copied user: Fix it.", "copied agent: I looked. [x.py]", "agent: Done."],
    }


def test_calls_without_an_answer_are_listed_and_their_retry_goes_on() -> None:
    failed = call("1", [ASK], None, 10, error_code="engine_timeout")
    made = checked(session(failed, call("2", [ASK], DONE, 20)))
    assert transcript(made["steps"]) == ["user: Fix it.", "agent: Done."]
    assert [(one["call_id"], one["error_code"]) for one in made["extra"]["unanswered_calls"]] == [
        ("1", "engine_timeout")
    ]
    alone = checked(session(failed))
    assert transcript(alone["steps"]) == ["user: Fix it."]


def test_a_session_without_calls_has_a_step_that_says_so() -> None:
    assert transcript(checked(session())["steps"]) == ["system: This session made no model call."]


def test_what_the_format_has_no_place_for_is_kept() -> None:
    odd = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "shell", "arguments": "ls -l"}}]}
    picture = {"type": "image_url", "image_url": {"url": "data:image/bmp;base64,AAAA"}}
    results = [FILES, FILES | {"tool_call_id": "b"}, {"role": "user", "content": [picture]}]
    made = checked(session(call("1", [ASK], odd, 10), call("2", [ASK, odd, *results], DONE, 20)))
    asked, read = made["steps"][1:3]
    assert asked["tool_calls"][0] == {
        "tool_call_id": "a",
        "function_name": "shell",
        "arguments": {},
        "extra": {"arguments": "ls -l"},
    }
    assert asked["observation"]["results"] == [
        {"source_call_id": "a", "content": "x.py"},
        {"content": "x.py", "extra": {"tool_call_id": "b"}},
    ]
    assert read["message"] == [{"type": "text", "text": "[image: image/bmp, 26 characters]"}]
