"""What a request to Anthropic's Messages API looks like, as far as it is read here; fields that aren't here are skipped.

Types are as wide as the API's own: which values are carried, ignored or refused is told by `proxy/dialects/anthropic_messages.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from proxy.dialects.reading import ABSENT

Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What the log can hold; JSON knows no bound."""


class Source(msgspec.Struct):
    """Where an image or a document is; `type` says which of the others is set."""

    type: str
    media_type: str | None = None
    data: str | None = None
    """Base64, or the text of a document of type `text`."""
    url: str | None = None
    content: str | list[Block] | None = None


class ToolSpec(msgspec.Struct):
    """A tool of any kind: with an `input_schema` a function, else one that Anthropic defines."""

    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = ABSENT
    strict: bool | None = None
    defer_loading: bool | None = None
    """Not shown to the model before a tool reference names it."""


class ToolChange(msgspec.Struct):
    """What a `tool_addition` or `tool_removal` is about: a reference by name, or a definition."""

    name: str | None = None
    server_name: str | None = None
    definition: ToolSpec | None = None


class Block(msgspec.Struct):
    """A content block of any type, in messages, tool results, documents and `system`."""

    type: str
    text: str | None = None
    source: str | Source | None = None
    """Of an image or a document; of a search result its address."""
    title: str | None = None
    context: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    """Of redacted thinking."""
    id: str | None = None
    name: str | None = None
    input: Any = None
    """Of a tool use: any JSON, as the harness parsed what was sampled."""
    tool_use_id: str | None = None
    content: str | list[Block] | Block | None = None
    """Of a result, a search result or a compaction."""
    is_error: bool | None = None
    tool_name: str | None = None
    """Of a tool reference."""
    tool: ToolChange | None = None


class Format(msgspec.Struct):
    """The grammar of an answer."""

    type: str
    schema: msgspec.Raw = ABSENT


class OutputConfig(msgspec.Struct):
    """How an answer is made; that of a message has the effort alone."""

    effort: str | None = None
    format: Format | None = None


class WireMessage(msgspec.Struct):
    """A message; `system` ones may stand anywhere."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block] | None = None
    output_config: OutputConfig | None = None


class Thinking(msgspec.Struct):
    """Whether to reason, how much, and how much of it to show."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class Choice(msgspec.Struct):
    """`tool_choice`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesRequest(msgspec.Struct):
    """A request's fields, all that are honoured and those that are refused. To count tokens, `max_tokens` is not given."""

    messages: list[WireMessage]
    model: str | None = None
    max_tokens: Tokens | None = None
    system: str | list[Block] | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    """What `output_config.format` was called before."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    compaction: msgspec.Raw = ABSENT
    thread: msgspec.Raw = ABSENT
