"""Requests to OpenAI's Chat Completions, as far as they are read here; unknown fields are skipped, and null is missing.

Types are as wide as the API's own; `proxy/dialects/openai_chat.py` decides which values are carried, ignored or refused.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from proxy.chat import ImageUrl, NamedFunction, Role
from proxy.dialects.codec import ABSENT, Int64

# --- messages


class WireFile(msgspec.Struct):
    """The file of a `file` part."""

    file_data: str | None = None
    """A data URL."""
    filename: str | None = None
    file_id: str | None = None


class WireAudio(msgspec.Struct):
    """A sound by value."""

    data: str
    """Base64."""
    format: str
    """As `wav`."""


class WirePart(msgspec.Struct):
    """A content part; `type` decides which other field is set."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | None = None
    input_audio: WireAudio | None = None
    file: WireFile | None = None


class WireFunctionCall(msgspec.Struct):
    """A function call as a harness repeats it."""

    name: str
    arguments: str | None = None


class WireCustomCall(msgspec.Struct):
    """A custom tool's call as a harness repeats it."""

    name: str
    input: str = ""


class WireToolCall(msgspec.Struct):
    """A tool call as a harness repeats it."""

    id: str = ""
    type: str = "function"
    function: WireFunctionCall | None = None
    custom: WireCustomCall | None = None


class WireMessage(msgspec.Struct):
    """A message of any role."""

    role: Role
    content: str | list[WirePart] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[WireToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    refusal: str | None = None
    function_call: msgspec.Raw = ABSENT
    audio: msgspec.Raw = ABSENT


# --- tools


class Grammar(msgspec.Struct):
    """The grammar of a custom tool's input."""

    definition: str
    syntax: str = ""


class CustomFormat(msgspec.Struct):
    """`text`, or `grammar` with one."""

    type: str = "text"
    grammar: Grammar | None = None


class CustomSpec(msgspec.Struct):
    """A tool whose input is text."""

    name: str
    description: str | None = None
    format: CustomFormat | None = None


class FunctionSpec(msgspec.Struct):
    """A tool whose arguments are JSON."""

    name: str
    description: str | None = None
    parameters: msgspec.Raw = ABSENT
    strict: bool | None = None


class ToolSpec(msgspec.Struct):
    """A tool of any kind; either `function` or `custom` is set."""

    type: str = "function"
    function: FunctionSpec | None = None
    custom: CustomSpec | None = None


class ToolName(msgspec.Struct):
    """A tool by its name."""

    type: str = "function"
    function: NamedFunction | None = None
    custom: NamedFunction | None = None


class AllowedTools(msgspec.Struct):
    """The tools that the model may call, or must call one of."""

    tools: list[ToolName]
    mode: Literal["auto", "required"] = "auto"


class Choice(ToolName):
    """A tool choice that is an object: a tool, or the allowed tools."""

    allowed_tools: AllowedTools | None = None


# --- the request


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct):
    """`response_format`, as far as it is read here."""

    type: str


class ChatCompletionRequest(msgspec.Struct):
    """The honoured and the refused fields."""

    messages: list[WireMessage]
    model: str | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    max_tokens: Int64 | None = None
    max_completion_tokens: Int64 | None = None
    stop: str | list[str] | None = None
    response_format: msgspec.Raw = ABSENT
    reasoning_effort: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    modalities: list[str] | None = None
    functions: msgspec.Raw = ABSENT
    function_call: msgspec.Raw = ABSENT
