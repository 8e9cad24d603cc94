"""What holds of every dialect, as one abstract suite with a table of cases for each; and what the dialects' tests share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st

from proxy.chat import (
    Answer,
    AudioPart,
    ChatRequest,
    FinishReason,
    FunctionCall,
    Message,
    Part,
    TextPart,
    ToolCall,
    Usage,
)
from proxy.dialects.base import Dialect, Wire
from proxy.errors import Refusal, RefusalError

READINGS = Path(__file__).parent / "readings"
"""For each dialect, by what they show: fields of requests, and the transcript that the model reads."""
DEEP = b"[" * 100_000 + b"]" * 100_000
HI = [Message("user", "hi")]


def answer_of(
    message: Message, finish_reason: FinishReason = "stop", usage: Usage | None = None, stop_sequence: str | None = None
) -> Answer:
    return Answer(
        message,
        finish_reason,
        usage or Usage(10, 5),
        b"",
        b"",
        b"",
        "served",
        policy_version=3,
        stop_sequence=stop_sequence,
    )


def comparable(request: ChatRequest) -> dict[str, Any]:
    """A request's fields without those of its dialect alone."""
    fields = {name: getattr(request, name) for name in request.__struct_fields__ if name != "wire"}
    return fields | {"response_format": bytes(request.response_format)}


def transcript(messages: Sequence[Message]) -> list[str]:
    """A line for each message: `tool run#c1: 'ok'`, `assistant: <reasoning> ['text', image(url)] run#c1 {"arguments":1}`."""
    lines = []
    for message in messages:
        answers = "" if message.tool_call_id is None else f" {message.name or ''}#{message.tool_call_id}"
        words = [f"{message.role}{answers}:"]
        if message.reasoning is not None:
            words.append(f"<{message.reasoning}>")
        if isinstance(message.content, list):
            words.append(f"[{', '.join(_shown(part) for part in message.content)}]")
        elif message.content is not None:
            words.append(repr(message.content))
        words += [f"{call.function.name}#{call.id} {call.function.arguments}" for call in message.tool_calls]
        lines.append(" ".join(words))
    return lines


def _shown(part: Part) -> str:
    if isinstance(part, TextPart):
        return repr(part.text)
    if isinstance(part, AudioPart):
        return f"audio({part.url})"
    return f"image({', '.join(filter(None, (part.image_url.url, part.image_url.detail)))})"


# --- strategies

texts = st.text(max_size=30)
function_names = texts
"""A model may call a function without a name."""
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
"""Arguments of calls that are JSON objects, compact or indented, with any line ends."""
compact_objects = objects.map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")))
indented_objects = st.builds(
    lambda value, end: json.dumps(value, ensure_ascii=False, indent=1).replace("\n", end),
    objects,
    st.sampled_from(["\n", "\r\n", "\r"]),
)
object_texts = compact_objects | indented_objects


def messages_with(calls: st.SearchStrategy[ToolCall]) -> st.SearchStrategy[Message]:
    """Messages that a model may have said."""
    return st.builds(
        Message,
        role=st.just("assistant"),
        content=st.none() | texts,
        reasoning=st.none() | texts,
        tool_calls=st.lists(calls, max_size=3, unique_by=lambda call: call.id),
    )


def answers_with(calls: st.SearchStrategy[ToolCall]) -> st.SearchStrategy[Answer]:
    """Answers of an engine."""
    return st.builds(
        answer_of,
        messages_with(calls),
        st.sampled_from(["stop", "length", "tool_calls", "content_filter"]),
        st.builds(Usage, st.integers(1, 10**6), st.integers(100, 10**6), *[st.none() | st.integers(0, 100)] * 2),
        st.none() | texts,
    )


def calls_with(
    arguments: st.SearchStrategy[str], names: st.SearchStrategy[str] = function_names
) -> st.SearchStrategy[ToolCall]:
    return st.builds(ToolCall, st.text(min_size=1, max_size=8), st.builds(FunctionCall, names, arguments))


# --- the suite


class DialectSuite:
    """A subclass gives the dialect and its tables; each row is a test of its own."""

    dialect: ClassVar[Dialect]
    smallest: ClassVar[dict[str, Any]]
    """A request whose only message is the user's "hi"."""
    path: ClassVar[Mapping[str, str]] = {}
    refused: ClassVar[Sequence[tuple[dict[str, Any], str]]]
    """Fields that replace those of `smallest`, and the path that the refusal names."""
    raw_fields: ClassVar[Sequence[bytes]]
    """Fields in which any JSON may stand, at `%b`; the first is a tool's schema."""
    nullable: ClassVar[Sequence[str]]
    stops: ClassVar[str | None]
    """Path of the field with stop strings; None: the provider has none."""
    efforts: ClassVar[Sequence[tuple[dict[str, Any], str | None]]]
    """Fields of a request, and the canonical reasoning effort."""
    tool_choices: ClassVar[Sequence[tuple[dict[str, Any], Any, list[str]]]]
    """Fields of a request, the canonical choice, and the names of the tools that the model is shown."""
    overflows: ClassVar[Sequence[tuple[tuple[int, int] | None, str]]]
    """Tokens of the prompt and of the context, and the words by which harnesses know to compact."""

    @classmethod
    def parse(cls, **fields: Any) -> ChatRequest:
        return cls.parse_bytes(json.dumps(cls.smallest | fields).encode())

    @classmethod
    def parse_bytes(cls, body: bytes) -> ChatRequest:
        return cls.dialect.parse(Wire(body, cls.path))

    @classmethod
    def with_field(cls, field: bytes, value: bytes) -> ChatRequest:
        return cls.parse_bytes(json.dumps(cls.smallest).encode()[:-1] + b"," + field % value + b"}")

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        tables = {"refusal": "refused", "raw_field": "raw_fields", "effort": "efforts", "choice": "tool_choices"}
        if "reading" in metafunc.fixturenames:
            readings = json.loads((READINGS / f"{cls.dialect.name}.json").read_text())
            metafunc.parametrize("reading", readings.values(), ids=readings.keys())
        for name, table in (tables | {"overflow": "overflows"}).items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, [*getattr(cls, table)], ids=str)

    def test_a_conversation_is_read(self, reading: dict[str, Any]) -> None:
        fields = {name: value for name, value in reading.items() if name != "transcript"}
        assert transcript(self.parse(**fields).messages) == reading["transcript"]

    def test_what_cannot_be_carried_is_refused_with_its_field(self, refusal: tuple[dict[str, Any], str]) -> None:
        fields, field = refusal
        assert self.parse().messages == HI
        with pytest.raises(RefusalError) as error:
            self.parse(**fields)
        assert (error.value.refusal, error.value.field) == (Refusal.INVALID, field)
        assert field in self.dialect.error(error.value).decode()

    @pytest.mark.parametrize(
        ("stops", "are_refused"),
        [(["x"] * 64, False), (["x"] * 65, True), (["x" * 65_536], False), (["é" * 30_000, "x" * 6_000], True)],
        ids=["many", "too many", "long", "too long"],
    )
    def test_stop_strings_are_few_and_short(self, stops: list[str], are_refused: bool) -> None:
        """They stand on the call in its trajectory, also if the engine refuses the call."""
        if self.stops is None:
            assert self.parse(stop=stops).stop == []
            return
        field, _, inner = self.stops.partition(".")
        fields = {field: {inner: stops} if inner else stops}
        if not are_refused:
            assert self.parse(**fields).stop == stops
            return
        with pytest.raises(RefusalError, match="at most 6") as error:
            self.parse(**fields)
        assert (error.value.refusal, error.value.field) == (Refusal.INVALID, self.stops)

    def test_a_request_without_a_conversation_is_refused(self) -> None:
        with pytest.raises(RefusalError) as error:
            self.parse_bytes(b"{}")
        assert error.value.refusal is Refusal.INVALID

    def test_any_json_is_read_where_it_may_stand_and_no_other_text(self, raw_field: bytes) -> None:
        for value in (b"{}", b'{"a":' * 50 + b"1" + b"}" * 50):
            assert self.with_field(raw_field, value).messages == HI
        with suppress(RefusalError):  # where Python's own limit is reached
            assert self.with_field(raw_field, b'{"a":' * 900 + b"1" + b"}" * 900).messages == HI
        for value in (DEEP, b'{"x":"\xff"}', b"{", b"NaN"):
            with pytest.raises(RefusalError) as error:
                self.with_field(raw_field, value)
            assert error.value.refusal is Refusal.INVALID

    def test_a_tools_schema_keeps_its_bytes(self) -> None:
        [tool] = self.with_field(self.raw_fields[0], b'{"z": 1,"a":2.0}').tools
        assert bytes(tool.function.parameters).replace(b" ", b"") == b'{"z":1,"a":2.0}'

    def test_nulls_are_as_good_as_missing(self) -> None:
        assert comparable(self.parse(**dict.fromkeys(self.nullable))) == comparable(self.parse())

    def test_a_reasoning_effort_is_the_nearest_canonical_one(self, effort: tuple[dict[str, Any], str | None]) -> None:
        fields, expected = effort
        assert self.parse(**fields).reasoning_effort == expected

    def test_a_tool_choice_is_read_with_the_tools_that_it_leaves(
        self, choice: tuple[dict[str, Any], Any, list[str]]
    ) -> None:
        fields, expected, shown = choice
        request = self.parse(**fields)
        assert (request.tool_choice, [tool.function.name for tool in request.tools]) == (expected, shown)

    def test_a_prompt_that_is_too_long_is_reported_in_the_providers_words(
        self, overflow: tuple[tuple[int, int] | None, str]
    ) -> None:
        context, words = overflow
        error = RefusalError(Refusal.CONTEXT_LENGTH, "the engine's words", context=context)
        assert words in self.dialect.error(error).decode()
