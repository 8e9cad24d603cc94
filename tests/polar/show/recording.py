"""Sessions as a proxy, a coordinator and a builder leave them on the log: real deltas, the real builder; a token is a word."""

from __future__ import annotations

from typing import Any

import msgspec

from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from proxy.chat import Answer, Function, FunctionCall, Message, Tool, ToolCall, Usage
from proxy.session.history import CallHistory, transcript
from tests.consumers.token_tree.transcripts import build_record, completion, ids_of, logprobs_for
from topics.calls.delta import Spelled
from topics.types.completion import CallError, CallOutcome, Completion, TokenDelta
from topics.types.session import Phase, Plan, SessionState, Status, TaskState
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import Trajectory

PLAN = Plan(
    pool="default",
    priority=0,
    max_attempts=3,
    init_budget_s=1,
    run_budget_s=1,
    evaluate_budget_s=1,
    harness="shell",
    builder="prefix_merging",
    builder_config=b"{}",
    output=None,
    mode="train",
    metadata=b"{}",
)
TASK = TaskState("t", 2, "hash", plan=PLAN)


def says(role: Any, content: str | None, **more: Any) -> Message:
    return Message(role, content, **more)


def calls_tool(name: str, arguments: str, *, tool_call_id: str = "tool-1", **more: Any) -> Message:
    """An assistant's turn that calls one tool."""
    return Message("assistant", None, tool_calls=[ToolCall(tool_call_id, FunctionCall(name, arguments))], **more)


def row(phase: Phase = Phase.ENDED, **more: Any) -> SessionState:
    """Session `t.0`, of claim `claim`."""
    defaults: dict[str, Any] = {"run_claim_id": "claim", "status": Status.COMPLETED, "reward": 1.0}
    return SessionState("t.0", "t", 0, phase, since=0, **(defaults | more))


class Recording:
    """One claim's calls, in the order of the log."""

    def __init__(self) -> None:
        self.calls: list[Completion] = []
        self._history = CallHistory()

    def call(
        self,
        call_id: str,
        messages: list[Message],
        answer: Message,
        *,
        prompt: str = "p",
        sampled: str = "s",
        tools: tuple[str, ...] = (),
        **fields: Any,
    ) -> Completion:
        """An answered call, noted as acknowledged."""
        told = transcript(Spelled(messages), [Tool(Function(name)) for name in tools])
        prompt_ids, sampled_ids = ids_of(prompt), ids_of(sampled)
        logprobs = pack_logprobs(logprobs_for(call_id, sampled_ids))
        usage = Usage(len(prompt_ids), len(sampled_ids))
        given = Answer(answer, "stop", usage, pack_ids(prompt_ids), pack_ids(sampled_ids), logprobs, "model")
        written = self._history.transcript_delta(told)
        delta = self._history.prompt_delta(given)
        self._history.add(call_id, told, given.prompt_ids, given.sampled_ids, answer)
        at = 1_000 * (len(self.calls) + 1)
        fields = {"received_at": at, "completed_at": at + 250, "model_served": "model", **fields}
        record = completion(
            call_id,
            delta,
            sampled_ids,
            messages=written.messages,
            tools=written.tools,
            answer=msgspec.json.encode(answer),
            logprobs=logprobs,
            **fields,
        )
        self.calls.append(record)
        return record

    def failed(self, call_id: str, messages: list[Message], error: CallError) -> Completion:
        """A call without an answer."""
        written = self._history.transcript_delta(transcript(Spelled(messages), []))
        at = 1_000 * (len(self.calls) + 1)
        record = completion(
            call_id,
            TokenDelta(b""),
            [],
            messages=written.messages,
            outcome=CallOutcome.FAILED,
            error=error,
            finish_reason=None,
            received_at=at,
            completed_at=at + 10,
        )
        self.calls.append(record)
        return record

    def build(self, *, disowned: frozenset[str] = frozenset(), **fields: Any) -> Trajectory:
        """What the builder makes of it."""
        return PrefixMerging().build(BuiltFrom(build_record(**fields), self.calls, disowned))


def a_session() -> Recording:
    """A tool is called, its result read; a title is asked for aside; then the history is edited, and a call fails."""
    recording = Recording()
    system, task = says("system", "be brief"), says("user", "mend it")
    look = calls_tool("bash", '{"command": "ls\\n-la"}', reasoning="first look around")
    result = says("tool", "\n".join(f"file {n}" for n in range(100)), tool_call_id="tool-1")
    done = says("assistant", "mended")
    tools = ("bash", "edit")
    recording.call("c-look", [system, task], look, prompt="be brief mend it", sampled="look around", tools=tools)
    recording.call("c-title", [says("user", "a title")], says("assistant", "Mending"), prompt="a title", sampled="Mending",
                   kind="title", kind_rule="asks for a title")  # fmt: skip
    recording.call("c-done", [system, task, look, result], done, prompt="be brief mend it look around files",
                   sampled="mended it", tools=tools)  # fmt: skip
    edited = says("assistant", "looked")
    recording.call("c-edit", [system, task, edited, says("user", "again")], says("assistant", "mended again"),
                   prompt="be brief mend it looked again", sampled="mended again", tools=tools)  # fmt: skip
    recording.failed("c-failed", [system, task, look, result, done], CallError("bad_engine", "it fell over", 500))
    return recording
