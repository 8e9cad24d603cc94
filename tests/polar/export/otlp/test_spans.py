"""Spans of sessions whose truth is known: ids, parents, times, attributes, and what is only sent when asked for."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanKind, StatusCode

from polar.export.otlp import contents
from polar.export.otlp.contents import CONTENT_BYTES
from polar.export.otlp.spans import NS_PER_MS, Origin, StageReport, Tracer
from polar.export.sessions import ExportedCall, ExportedSession
from tests.polar.export.otlp.lake import ACCOUNTING
from tests.polar.export.random_sessions import exported
from tests.polar.export.talks import NOON, SEARCH, Talk, turns
from topics.types.completion import CallError, CallOutcome, PolicySpan, Sampling
from topics.types.errors import Kind, SessionError
from topics.types.session import Stage, Status
from topics.types.tokens import count

ORIGIN = Origin("cluster", "polar")
REPORTS = [
    StageReport(Stage.INIT, 1, NOON - 1000, 2000),
    StageReport(Stage.RUN, 1, NOON + 9500, 10_000),
    StageReport(Stage.EVALUATE, 1, NOON + 13_000, 3000),
]


def session_of(talk: Talk, *, with_records: bool = True) -> ExportedSession:
    trajectory = talk.trajectory()
    records = {record.call_id: record for record in talk.calls}
    calls = [
        ExportedCall(
            call,
            [{"role": "user", "content": "the secret"}],
            {"role": "assistant", "content": "said"},
            [SEARCH],
            records[call.call_id] if with_records else None,
        )
        for call in trajectory.calls
    ]
    return ExportedSession(trajectory, calls)


def spans_of(talk: Talk, reports: list[StageReport], *, with_contents: bool = False) -> list[ReadableSpan]:
    return Tracer(ORIGIN, with_contents=with_contents).spans(session_of(talk), reports, NOON + 20_000)


def shape(spans: list[ReadableSpan]) -> list[str]:
    """Each span as its name, its parent's name, and its times in seconds from noon."""
    names = {span.context.span_id: span.name for span in spans if span.context}
    return [
        f"{span.name} < {names[span.parent.span_id] if span.parent else None} "
        f"[{(span.start_time or 0) / 1e9 - NOON / 1e3:g}, {(span.end_time or 0) / 1e9 - NOON / 1e3:g}]"
        for span in spans
    ]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_session_is_a_root_with_its_stages_and_its_calls_in_the_run() -> None:
    talk = turns("t.0", reward=0.5, accounting=ACCOUNTING, run="night", num_samples=4)
    spans = spans_of(talk, REPORTS)
    assert shape(spans) == [
        "invoke_agent shell < None [-3, 13]",
        "init < invoke_agent shell [-3, -1]",
        "run < invoke_agent shell [-0.5, 9.5]",
        "evaluate < invoke_agent shell [10, 13]",
        "chat < run [0, 0.5]",
        "chat < run [1, 1.5]",
    ]
    assert {span.context.trace_id for span in spans if span.context} == {ORIGIN.trace_id("t.0")}
    root = attributes(spans[0])
    expected = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "shell",
        "gen_ai.conversation.id": "t.0",
        "polar.task_id": "t",
        "polar.sample_index": 0,
        "polar.run": "night",
        "polar.reward": 0.5,
        "polar.status": "COMPLETED",
        "polar.init_queued_ms": 5,
    }
    assert expected.items() <= root.items()
    assert spans[0].status.status_code is StatusCode.UNSET
    for span, record in zip(spans[4:], talk.calls, strict=True):
        made = attributes(span)
        assert span.kind is SpanKind.CLIENT
        assert made["gen_ai.usage.input_tokens"] == record.prompt.shared + count(record.prompt.rest)
        assert made["gen_ai.usage.output_tokens"] == count(record.sampled)
        assert made["gen_ai.response.id"] == made["polar.call_id"] == record.call_id


def test_a_call_has_its_request_its_response_and_its_weights() -> None:
    talk = Talk("t.0")
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=20, max_tokens=64, seed=7, stop=["END"])
    spans = [PolicySpan(3, 0, 1), PolicySpan(4, 1, 2)]
    talk.call(
        [{"role": "user", "content": "hi"}],
        [1, 2, 3],
        [4, 5],
        model_requested="gpt-x",
        model_served="qwen",
        finish_reason="length",
        sampling=sampling,
        policy_version=3,
        policy_spans=spans,
        publication=9,
        stream=True,
    )
    call = spans_of(talk, [])[1]
    assert call.name == "chat gpt-x"
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 20.0,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "qwen",
        "gen_ai.response.finish_reasons": ("length",),
        "polar.policy_version": 3,
        "polar.policy_versions": (3, 4),
        "polar.publication": 9,
    }
    made = attributes(call)
    assert {name: tuple(v) if isinstance(v := made[name], list) else v for name in expected} == expected
    assert "gen_ai.request.stop_sequences" not in made


def test_a_failed_session_and_a_failed_call_name_their_errors() -> None:
    error = SessionError("run", Kind.AGENT, "exit_code", "it said: the secret")
    talk = Talk("t.0", status=Status.FAILED, error=error, reward=None, accounting=ACCOUNTING)
    talk.call(
        [{"role": "user", "content": "hi"}],
        [1, 2],
        [],
        outcome=CallOutcome.FAILED,
        error=CallError("engine_down", "no engine", 503),
        finish_reason=None,
    )
    root, _, run, _, call = spans_of(talk, REPORTS)
    for span, code in ((root, "exit_code"), (run, "exit_code"), (call, "engine_down")):
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == code
        assert "secret" not in str(span.attributes)
    assert "polar.reward" not in attributes(root)
    assert "gen_ai.response.id" not in attributes(call)


def test_times_that_nobody_reported_are_not_invented() -> None:
    talk = turns("t.0", accounting=ACCOUNTING)
    stale = [StageReport(Stage.INIT, 2, NOON, 2000), StageReport(Stage.RUN, 1, NOON, 9999)]
    assert shape(spans_of(talk, stale)) == [
        "invoke_agent shell < None [0, 1.5]",
        "chat < invoke_agent shell [0, 0.5]",
        "chat < invoke_agent shell [1, 1.5]",
    ]
    empty = Talk("t.1", status=Status.CANCELLED, reward=None)
    assert shape(spans_of(empty, [])) == ["invoke_agent shell < None [20, 20]"]


def test_a_clock_that_was_set_back_ends_no_span_before_its_start_or_its_child() -> None:
    talk = Talk("t.0")
    talk.call([{"role": "user", "content": "hi"}], [1, 2], [3])
    talk.calls[0] = msgspec.structs.replace(talk.calls[0], completed_at=NOON - 700)
    assert shape(spans_of(talk, [])) == ["invoke_agent shell < None [0, 0]", "chat < invoke_agent shell [0, 0]"]


def test_contents_come_only_when_asked_for() -> None:
    talk = turns("t.0", 1, reward_reason="the secret test")
    assert "secret" not in str([span.attributes for span in spans_of(talk, REPORTS)])
    root, call = spans_of(talk, [], with_contents=True)
    assert attributes(root)["polar.reward_reason"] == "the secret test"
    made = attributes(call)
    assert json.loads(made["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "the secret"}]}
    ]
    assert json.loads(made["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "said"}], "finish_reason": "stop"}
    ]
    (tool,) = json.loads(made["gen_ai.tool.definitions"])
    assert tool == {"type": "function", "name": "search", "parameters": {"type": "object"}}


def test_messages_have_the_conventions_parts() -> None:
    call = session_of(turns("t.0", 1)).calls[0]
    function = {"name": "search", "arguments": '{"q": 1}'}
    messages: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"role": "assistant", "reasoning": "hm", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
        {
            "role": "tool",
            "tool_call_id": "d",
            "content": [{"type": "text", "text": "shot"}, {"type": "image_url", "image_url": {"url": "data:secret"}}],
        },
    ]
    exported_call = ExportedCall(call.call, messages, None, [], call.record)
    made = json.loads(contents.attributes(exported_call)["gen_ai.input.messages"])
    assert made == [
        {"role": "user", "parts": [{"type": "text", "content": "see"}, {"type": "image_url"}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "tool_call", "id": "c", "name": "search", "arguments": {"q": 1}},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "found"}]},
        {
            "role": "tool",
            "parts": [
                {
                    "type": "tool_call_response",
                    "id": "d",
                    "response": [{"type": "text", "content": "shot"}, {"type": "image_url"}],
                }
            ],
        },
    ]


def test_contents_that_are_unknown_or_too_long_are_left_out_with_the_reason() -> None:
    call = session_of(turns("t.0", 1)).calls[0]
    long = ExportedCall(call.call, [{"role": "user", "content": "x" * CONTENT_BYTES}], call.answer, [], call.record)
    made = contents.attributes(long)
    assert made["polar.contents_omitted"].endswith("bytes: gen_ai.input.messages")
    assert "gen_ai.output.messages" in made
    unknown = ExportedCall(call.call, [], None, [], None, "no record")
    assert contents.attributes(unknown) == {"polar.contents_omitted": "no record"}


@pytest.mark.parametrize("seed", range(30))
def test_random_sessions_have_one_span_for_each_call_and_names_of_the_conventions(seed: int) -> None:
    _, session = exported(seed)
    first, second = (Tracer(ORIGIN, with_contents=True).spans(session, [], NOON) for _ in range(2))
    assert [span.to_json() for span in first] == [span.to_json() for span in second]
    assert len({span.context.span_id for span in first if span.context}) == 1 + len(session.calls)
    known = {
        value
        for module in (gen_ai_attributes, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    for span in first:
        assert {name for name in attributes(span) if not name.startswith("polar.")} <= known
        assert (span.start_time or 0) <= (span.end_time or 0)
        assert (span.start_time or 0) % NS_PER_MS == 0


names = st.text(max_size=8)


@given(st.tuples(names, names, names, names), st.tuples(names, names, names, names))
def test_ids_depend_on_every_name_and_on_nothing_else(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    def ids(cluster: str, namespace: str, session_id: str, call_id: str) -> tuple[int, int, int]:
        origin = Origin(cluster, namespace)
        return origin.trace_id(session_id), origin.span_id(session_id), origin.span_id(session_id, "call", call_id)

    trace, root, call = ids(*one)
    assert (trace, root, call) == ids(*one)
    assert 0 < trace < 1 << 128
    assert 0 < root < 1 << 64
    assert root != call
    assert (trace == ids(*other)[0]) == (one[:3] == other[:3])
    assert (call == ids(*other)[2]) == (one == other)
