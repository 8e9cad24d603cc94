"""The messages of a call as attributes of its span, in the JSON of OpenTelemetry's conventions. Only sent when asked for.

Pure. Forms: `gen_ai-input-messages.json`, `gen_ai-output-messages.json` and `gen_ai-tool-definitions.json` of the semantic conventions
1.41.1. Spans have no structured attributes in OTLP's stable form, so each is a JSON string.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from polar.export.sessions import ExportedCall
from polar.export.tool_arguments import parsed

CONTENT_BYTES = 1024 * 1024
"""Longest attribute. Receivers refuse large requests whole: the OpenTelemetry collector those above 20 MiB."""

Message = dict[str, Any]


def attributes(call: ExportedCall) -> dict[str, str]:
    """The attributes of a call's content. What isn't known or is too long is absent, and `polar.contents_omitted` says why."""
    if call.gap is not None:
        return {"polar.contents_omitted": call.gap}
    finish = call.call.finish_reason or "error"
    found: dict[str, Any] = {"gen_ai.input.messages": [_message(message) for message in call.messages]}
    if call.answer is not None:
        found["gen_ai.output.messages"] = [{**_message(call.answer), "finish_reason": finish}]
    if call.tools:
        found["gen_ai.tool.definitions"] = [{"type": "function", **tool["function"]} for tool in call.tools]
    encoded = {name: msgspec.json.encode(value) for name, value in found.items()}
    long = sorted(name for name, value in encoded.items() if len(value) > CONTENT_BYTES)
    kept = {name: value.decode() for name, value in encoded.items() if name not in long}
    return {**kept, "polar.contents_omitted": f"longer than {CONTENT_BYTES} bytes: {', '.join(long)}"} if long else kept


def _message(message: Message) -> Message:
    return {"role": message["role"], "parts": [*_parts(message)]}


def _parts(message: Message) -> Iterator[Message]:
    if message.get("reasoning"):
        yield {"type": "reasoning", "content": message["reasoning"]}
    content = message.get("content") or ""
    parts = [_part(part) for part in content] if isinstance(content, list) else content
    if message["role"] == "tool":
        yield {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": parts}
        return
    if isinstance(parts, list):
        yield from parts
    elif parts:
        yield {"type": "text", "content": parts}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = parsed(function["arguments"])
        yield {
            "type": "tool_call",
            "id": call.get("id"),
            "name": function["name"],
            "arguments": function["arguments"] if arguments is None else arguments,
        }


def _part(part: Message) -> Message:
    """A text, or the kind of an image or a sound without its bytes."""
    if part.get("type") == "text":
        return {"type": "text", "content": part["text"]}
    return {"type": str(part.get("type"))}
