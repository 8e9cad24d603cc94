"""Requests to OpenAI's Responses API, as far as they are read here; unknown fields are skipped, and null is missing.

Types are as wide as the API's own; `proxy/dialects/openai_responses.py` decides which values are carried, ignored or refused. Input
items and tools are decoded one by one, each by its type, so that one of an unknown type doesn't fail the request.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from proxy.dialects.codec import ABSENT, Int64

# --- input items


class Item(msgspec.Struct):
    """The fields that decide an input item's type; without `type` it is a message, or a reference if it has only an id."""

    type: str | None = None
    role: str | None = None
    id: str | None = None


class ItemReference(msgspec.Struct):
    """`item_reference`, and an item that has only an id."""

    id: str


class WirePart(msgspec.Struct):
    """A content part of a message or of a tool's output; `type` decides which other field is set."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    """A data URL, or base64."""
    file_url: str | None = None
    filename: str | None = None
    encrypted_content: str | None = None


class MessageItem(msgspec.Struct):
    """`message`, and a message without a type."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[WirePart] | None = None
    id: str | None = None


class AgentMessageItem(msgspec.Struct):
    """`agent_message`: a message from one of Codex's agents to another."""

    content: list[WirePart]


class Thought(msgspec.Struct):
    """`summary_text` or `reasoning_text`."""

    text: str = ""


class ReasoningItem(msgspec.Struct):
    """`reasoning`."""

    summary: list[Thought] | None = None
    content: list[Thought] | None = None
    encrypted_content: str | None = None
    id: str | None = None


class FunctionCallItem(msgspec.Struct):
    """`function_call`."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    id: str | None = None


class CustomCallItem(msgspec.Struct):
    """`custom_tool_call`."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None
    id: str | None = None


class SearchCallItem(msgspec.Struct):
    """`tool_search_call`; a hosted search has no call id."""

    arguments: msgspec.Raw
    call_id: str | None = None
    execution: str | None = None
    id: str | None = None


class BuiltInCallItem(msgspec.Struct):
    """`local_shell_call`, `shell_call` or `apply_patch_call`: the first two have an action, the last an operation."""

    call_id: str
    action: msgspec.Raw = ABSENT
    operation: msgspec.Raw = ABSENT
    id: str | None = None


class OutputItem(msgspec.Struct):
    """`function_call_output`, `custom_tool_call_output`, `local_shell_call_output` (of which `id` may be all there is)."""

    call_id: str | None = None
    id: str | None = None
    output: str | list[WirePart] | None = None


class ShellOutputItem(msgspec.Struct):
    """`shell_call_output`."""

    call_id: str
    output: msgspec.Raw


class ApplyPatchOutputItem(msgspec.Struct):
    """`apply_patch_call_output`."""

    call_id: str
    status: str
    output: str | None = None


class SearchOutputItem(msgspec.Struct):
    """`tool_search_output`; a hosted search has no call id."""

    tools: list[msgspec.Raw]
    call_id: str | None = None


class AdditionalToolsItem(msgspec.Struct):
    """`additional_tools`."""

    tools: list[msgspec.Raw]


# --- tools


class CustomFormat(msgspec.Struct):
    """`format` of a custom tool: `text`, or a `grammar`."""

    type: str
    syntax: str | None = None
    definition: str | None = None


class Environment(msgspec.Struct):
    """The environment in which a `shell` tool runs."""

    type: str


class ToolSpec(msgspec.Struct):
    """A tool of any type; `type` decides which other fields count."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: msgspec.Raw = ABSENT
    strict: bool | None = None
    defer_loading: bool | None = None
    """Hidden from the model until a tool search finds the tool."""
    format: CustomFormat | None = None
    tools: list[msgspec.Raw] | None = None
    """The tools of a namespace."""
    execution: str | None = None
    """Who runs a tool search: `client`, or the provider's server."""
    environment: Environment | None = None


class Choice(msgspec.Struct):
    """`tool_choice` as an object, or a tool in `allowed_tools`."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[Choice] | None = None


# --- the request


class Reasoning(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class Format(msgspec.Struct):
    type: str
    name: str | None = None
    schema: msgspec.Raw = ABSENT
    strict: bool | None = None
    description: str | None = None


class Text(msgspec.Struct):
    format: Format | None = None
    verbosity: str | None = None


class PromptCacheOptions(msgspec.Struct):
    prewarm: bool | None = None


class ResponsesRequest(msgspec.Struct):
    """The honoured fields, the fields that the answer repeats, and the refused fields."""

    model: str | None = None
    input: str | list[msgspec.Raw] | None = None
    instructions: str | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: msgspec.Raw = ABSENT
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: Int64 | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None

    metadata: dict[str, str] | None = None
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    truncation: str | None = None
    user: str | None = None

    background: bool | None = None
    conversation: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    generate: bool | None = None
    prompt_cache_options: PromptCacheOptions | None = None
