"""Anthropic's messages, content blocks and tools in canonical form, by the rules in `anthropic_messages.py`.

Invariant: a block's form depends on the block and on the tools that it names, never on later blocks. So the prompt of a growing
conversation only grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from proxy.chat import Function, FunctionCall, ImagePart, ImageUrl, Message, Part, TextPart, Tool, ToolCall
from proxy.dialects import signature
from proxy.dialects.codec import inlined, invalid, is_present
from proxy.wire.anthropic_messages import Block, MessagesRequest, Source, ToolSpec, WireMessage

BILLING = "x-anthropic-billing-header:"
"""Beginning of Claude Code's block with its version and a hash of the first prompt."""
TOOL_ERROR = "[tool error]"
SCHEMALESS_TOOLS = ("bash_", "text_editor_", "computer_", "memory_", "browser_")
"""Prefixes of tool types that the harness runs and whose schema only Anthropic's models know."""
TOOL_SEARCH = "tool_search_tool_"
"""Prefix of the types of Anthropic's own tool search."""
SERVER_BLOCKS = frozenset({"server_tool_use", "mcp_tool_use", "mcp_tool_listing", "fallback"})
SERVER_RESULTS = "_tool_result"
"""Suffix of the types of server tools' results."""
UNPARSED = "__unparsedToolInput"
"""Claude Code's name for arguments that are no JSON object: `{"__unparsedToolInput": {"raw": …, "len": …}}`."""

_encode = msgspec.json.Encoder().encode


# --- tools


class OfferedTools:
    """A request's tools: those that the model is shown from the start, and the deferred ones, which wait for a reference."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        """Raises RefusalError for a tool that can't be offered."""
        self.names = frozenset(spec.name for spec in specs)
        self.hosted: list[str] = []
        """Types of the tools that Anthropic's servers would run."""
        functions: list[tuple[Function, bool]] = []
        for at, spec in enumerate(specs):
            if spec.type is None or spec.type == "custom" or is_present(spec.input_schema):
                functions.append((_function(spec, f"tools[{at}]"), bool(spec.defer_loading)))
            elif spec.type.startswith(SCHEMALESS_TOOLS):
                raise invalid(f"tools[{at}].type", f"{spec.type!r} needs an input_schema here")
            else:
                self.hosted.append(spec.type)
        searched_elsewhere = any(kind.startswith(TOOL_SEARCH) for kind in self.hosted)
        defers = not searched_elsewhere and not all(deferred for _, deferred in functions)
        self.tools = [Tool(function) for function, deferred in functions if not (defers and deferred)]
        self._deferred = {function.name: function for function, deferred in functions if defers and deferred}

    def referred(self, name: str) -> str:
        """The text for a reference to a tool: the definition if the tool is deferred."""
        deferred = self._deferred.get(name)
        return f"The tool {name} is available." if deferred is None else inlined(deferred)


def _function(spec: ToolSpec, field: str) -> Function:
    if not spec.name:
        raise invalid(f"{field}.name", "required")
    if not is_present(spec.input_schema):
        raise invalid(f"{field}.input_schema", "required")
    return Function(spec.name, spec.description, spec.input_schema, spec.strict)


# --- messages


def messages_of(wire: MessagesRequest, offered: OfferedTools) -> Iterator[Message]:
    """The conversation, system prompt first. Neighbouring assistant messages are one message: one turn to Anthropic.

    Raises RefusalError, naming the field.
    """
    system = _without_billing([Block("text", wire.system)] if isinstance(wire.system, str) else wire.system or [])
    if parts := _parts(system, "system", offered):
        yield Message("system", _content(parts))
    turn: Message | None = None
    for at, message in enumerate(wire.messages):
        for each in _messages(message, f"messages[{at}]", offered):
            if each.role == "assistant":
                turn = each if turn is None else _joined(turn, each)
                continue
            if turn is not None:
                yield turn
            turn = None
            yield each
    if turn is not None:
        yield turn


def _without_billing(system: list[Block]) -> list[Block]:
    if not system or not (system[0].text or "").startswith(BILLING):
        return system
    _, _, text = (system[0].text or "").partition("\n")
    return [Block("text", text), *system[1:]] if text else system[1:]


def _joined(first: Message, second: Message) -> Message:
    parts = [*_as_parts(first.content), *_as_parts(second.content)]
    reasoning = [message.reasoning for message in (first, second) if message.reasoning]
    return _assistant(parts, reasoning, [*first.tool_calls, *second.tool_calls])


def _as_parts(content: str | list[Part] | None) -> list[Part]:
    return _text(content) if isinstance(content, str) else content or []


def _messages(wire: WireMessage, field: str, offered: OfferedTools) -> Iterator[Message]:
    """One wire message as one or several: tool results are messages of their own."""
    blocks = [Block("text", wire.content)] if isinstance(wire.content, str) else wire.content or []
    match wire.role:
        case "assistant":
            yield from _turn(blocks, f"{field}.content", offered)
        case "system":
            if parts := _parts(blocks, f"{field}.content", offered):
                yield Message("system", _content(parts))
        case "user":
            yield from _user(blocks, f"{field}.content", offered)


def _user(blocks: list[Block], field: str, offered: OfferedTools) -> Iterator[Message]:
    parts: list[Part] = []
    for at, block in enumerate(blocks):
        where = f"{field}[{at}]"
        if block.type != "tool_result":
            parts += _part(block, where, offered)
            continue
        if parts:
            yield Message("user", _content(parts))
            parts = []
        yield _result(block, where, offered)
    if parts or not any(block.type == "tool_result" for block in blocks):
        yield Message("user", _content(parts))


def _result(block: Block, field: str, offered: OfferedTools) -> Message:
    if block.tool_use_id is None:
        raise invalid(f"{field}.tool_use_id", "required in a tool_result")
    parts = _inner(block.content, f"{field}.content", offered)
    if block.is_error:
        first = parts[0] if parts else None
        text = f"{TOOL_ERROR} {first.text}" if isinstance(first, TextPart) else TOOL_ERROR
        parts = [TextPart(text), *(parts[1:] if isinstance(first, TextPart) else parts)]
    return Message("tool", _content(parts), tool_call_id=block.tool_use_id)


def _turn(blocks: list[Block], field: str, offered: OfferedTools) -> Iterator[Message]:
    """The assistant's message; none if all blocks are of server tools."""
    parts: list[Part] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    own_blocks = [(at, block) for at, block in enumerate(blocks) if not _is_of_server_tool(block)]
    for at, block in own_blocks:
        where = f"{field}[{at}]"
        match block.type:
            case "thinking" | "redacted_thinking":
                sealed = block.signature if block.type == "thinking" else block.data
                unsealed = signature.unseal(sealed)
                reasoning.append(unsealed if unsealed is not None else block.thinking or "")
            case "tool_use":
                if block.id is None or block.name is None:
                    raise invalid(where, "a tool_use needs id and name")
                calls.append(ToolCall(block.id, FunctionCall(block.name, _arguments(block.input))))
            case _:
                parts += _part(block, where, offered)
    if own_blocks or not blocks:
        yield _assistant(parts, [thought for thought in reasoning if thought], calls)


def _assistant(parts: list[Part], reasoning: list[str], calls: list[ToolCall]) -> Message:
    content = _content(parts) if parts or not (reasoning or calls) else None
    return Message("assistant", content, reasoning="\n".join(reasoning) or None, tool_calls=calls)


def _is_of_server_tool(block: Block) -> bool:
    return block.type in SERVER_BLOCKS or block.type.endswith(SERVER_RESULTS)


def _arguments(parsed: Any) -> str:
    """A tool use's input as the model would write it."""
    if parsed is None:
        return "{}"
    unparsed = parsed.get(UNPARSED) if isinstance(parsed, dict) else None
    raw = unparsed.get("raw") if isinstance(unparsed, dict) else None
    return raw if isinstance(raw, str) else _encode(parsed).decode()


# --- content


def _content(parts: list[Part]) -> str | list[Part]:
    if not parts:
        return ""
    only = parts[0]
    return only.text if len(parts) == 1 and isinstance(only, TextPart) else parts


def _inner(content: str | list[Block] | Block | None, field: str, offered: OfferedTools) -> list[Part]:
    if isinstance(content, str):
        content = [Block("text", content)]
    return _parts([content] if isinstance(content, Block) else content or [], field, offered)


def _parts(blocks: Iterable[Block], field: str, offered: OfferedTools) -> list[Part]:
    return [part for at, block in enumerate(blocks) for part in _part(block, f"{field}[{at}]", offered)]


def _part(block: Block, field: str, offered: OfferedTools) -> list[Part]:
    """The parts of a block that the model reads: none for an empty text, several for a document with images."""
    match block.type:
        case "text":
            if block.text is None:
                raise invalid(f"{field}.text", "required in a text block")
            return _text(block.text)
        case "image":
            return [ImagePart(ImageUrl(_image(block.source, f"{field}.source")))]
        case "document":
            return _document(block, field, offered)
        case "search_result":
            head = [text for text in (block.title, block.source) if isinstance(text, str) and text]
            return [*_text("\n".join(head)), *_inner(block.content, f"{field}.content", offered)]
        case "tool_reference" if block.tool_name is not None:
            return [TextPart(offered.referred(block.tool_name))]
        case "tool_addition" | "tool_removal" if block.tool is not None:
            return [TextPart(_change(block, field, offered))]
        case "compaction":
            return _text(block.content) if isinstance(block.content, str) else []
    raise invalid(f"{field}.type", f"a block of type {block.type!r} can't be carried here")


def _text(text: str) -> list[Part]:
    return [TextPart(text)] if text else []


def _image(source: str | Source | None, field: str) -> str:
    match source:
        case Source(type="base64", media_type=str(media_type), data=str(data)):
            return f"data:{media_type};base64,{data}"
        case Source(type="url", url=str(url)):
            return url
    kind = source.type if isinstance(source, Source) else None
    raise invalid(field, f"expected an image as base64 with its media_type, or a url; got {kind!r}")


def _document(block: Block, field: str, offered: OfferedTools) -> list[Part]:
    head = "\n".join(text for text in (block.title, block.context) if text)
    match block.source:
        case Source(type="text", data=str(text)):
            return [*_text(head), *_text(text)]
        case Source(type="content", content=inner):
            return [*_text(head), *_inner(inner, f"{field}.source.content", offered)]
        case Source(type="base64" | "url") as source:
            what = source.media_type or source.url or "document"
            return [*_text(head), TextPart(f"[{what}: not shown]")]
    raise invalid(f"{field}.source", "expected a document of type text, content, base64 or url")


def _change(block: Block, field: str, offered: OfferedTools) -> str:
    """The text in place of a `tool_addition` or `tool_removal`."""
    change = block.tool
    assert change is not None, "checked by the caller"
    if block.type == "tool_removal":
        return f"The tool {change.name or change.server_name} is no longer available."
    if change.definition is not None:
        return inlined(_function(change.definition, f"{field}.tool.definition"))
    return offered.referred(change.name or change.server_name or "")
