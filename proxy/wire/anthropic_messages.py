"""Requests to Anthropic's Messages API, as far as they are read here; unknown fields are skipped, and null is missing.

Types are as wide as the API's own; `proxy/dialects/anthropic_messages.py` decides which values are carried, ignored or refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from proxy.dialects.codec import ABSENT, Int64

Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Source(msgspec.Struct):
    """The source of an image or a document; `type` decides which other field is set."""

    type: str
    media_type: str | None = None
    data: str | None = None
    """Base64, or the text of a document of type `text`."""
    url: str | None = None
    content: str | list[Block] | None = None


class ToolSpec(msgspec.Struct):
    """A tool of any kind: a function if it has an `input_schema`, otherwise a tool that Anthropic defines."""

    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = ABSENT
    strict: bool | None = None
    defer_loading: bool | None = None
    """Hidden from the model until a tool reference names the tool."""


class ToolChange(msgspec.Struct):
    """The tool of a `tool_addition` or `tool_removal`: a reference by name, or a definition."""

    name: str | None = None
    server_name: str | None = None
    definition: ToolSpec | None = None


class Block(msgspec.Struct):
    """A content block of any type, in messages, tool results, documents and `system`."""

    type: str
    text: str | None = None
    source: str | Source | None = None
    """The source of an image or a document; the address of a search result."""
    title: str | None = None
    context: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    """Redacted thinking."""
    id: str | None = None
    name: str | None = None
    input: Any = None
    """A tool use's input: any JSON, as the harness parsed the sampled text."""
    tool_use_id: str | None = None
    content: str | list[Block] | Block | None = None
    """The content of a result, a search result or a compaction."""
    is_error: bool | None = None
    tool_name: str | None = None
    """The tool of a tool reference."""
    tool: ToolChange | None = None


class Format(msgspec.Struct):
    """The grammar of an answer."""

    type: str
    schema: msgspec.Raw = ABSENT


class OutputConfig(msgspec.Struct):
    """Settings of the answer; in a message only the effort."""

    effort: str | None = None
    format: Format | None = None


class WireMessage(msgspec.Struct):
    """A message; `system` ones may stand anywhere."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block] | None = None
    output_config: OutputConfig | None = None


class Thinking(msgspec.Struct):
    """Settings of reasoning: kind, budget, and how much of it to show."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class Choice(msgspec.Struct):
    """`tool_choice`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesRequest(msgspec.Struct):
    """The honoured and the refused fields. A request to count tokens has no `max_tokens`."""

    messages: list[WireMessage]
    model: str | None = None
    max_tokens: Tokens | None = None
    system: str | list[Block] | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    """The former name of `output_config.format`."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    compaction: msgspec.Raw = ABSENT
    thread: msgspec.Raw = ABSENT
