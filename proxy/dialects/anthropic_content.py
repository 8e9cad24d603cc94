"""Anthropic's messages, content blocks and tools as the model reads them; the rules are the dialect's (`anthropic_messages.py`).

Invariant: what a block becomes depends on itself and on the tools that it names, never on what was said after it. So a conversation that
only grows is a prompt that only grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from proxy.chat import Function, FunctionCall, ImagePart, ImageUrl, Message, Part, TextPart, Tool, ToolCall
from proxy.dialects import signature
from proxy.dialects.reading import inlined
from proxy.errors import Refusal, RefusalError
from proxy.wire.anthropic_messages import Block, MessagesRequest, Source, ToolSpec, WireMessage

BILLING = "x-anthropic-billing-header:"
"""How the block of Claude Code's begins that names its version, with a hash of the first prompt."""
TOOL_ERROR = "[tool error]"
ANTHROPICS_OWN = ("bash_", "text_editor_", "computer_", "memory_", "browser_")
"""Types of tools that the harness runs, without a schema in the request."""
TOOL_SEARCH = "tool_search_tool_"
"""How the types of Anthropic's own tool search begin."""
SERVER_BLOCKS = frozenset({"server_tool_use", "mcp_tool_use", "mcp_tool_listing", "fallback"})
SERVER_RESULTS = "_tool_result"
"""How the types of server tools' results end."""
UNPARSED = "__unparsedToolInput"
"""Claude Code's name for arguments that are no JSON object: `{"__unparsedToolInput": {"raw": …, "len": …}}`."""
NOTHING = (b"", b"null")

_encode = msgspec.json.Encoder().encode


def invalid(field: str, why: str) -> RefusalError:
    """For a field that can't be carried."""
    return RefusalError(Refusal.INVALID, f"{field}: {why}", field=field)


# --- tools


class Offered:
    """A request's tools: those that the model is shown from the start, and those that wait for a reference."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        """Raises RefusalError for a tool that can't be offered."""
        self.names = frozenset(spec.name for spec in specs)
        self.hosted: list[str] = []
        """Types of the tools that Anthropic's servers would run."""
        functions: list[tuple[Function, bool]] = []
        for at, spec in enumerate(specs):
            if spec.type is None or spec.type == "custom" or bytes(spec.input_schema) not in NOTHING:
                functions.append((_function(spec, f"tools[{at}]"), bool(spec.defer_loading)))
            elif spec.type.startswith(ANTHROPICS_OWN):
                raise invalid(f"tools[{at}].type", f"{spec.type!r} needs an input_schema here")
            else:
                self.hosted.append(spec.type)
        searched_elsewhere = any(kind.startswith(TOOL_SEARCH) for kind in self.hosted)
        defers = not searched_elsewhere and not all(deferred for _, deferred in functions)
        self.tools = [Tool(function) for function, deferred in functions if not (defers and deferred)]
        self._deferred = {function.name: function for function, deferred in functions if defers and deferred}

    def referred(self, name: str) -> str:
        """What the model reads where a tool is referred to: the definition of a deferred one."""
        deferred = self._deferred.get(name)
        return f"The tool {name} is available." if deferred is None else inlined(deferred)


def _function(spec: ToolSpec, field: str) -> Function:
    if not spec.name:
        raise invalid(f"{field}.name", "required")
    if bytes(spec.input_schema) in NOTHING:
        raise invalid(f"{field}.input_schema", "required")
    return Function(spec.name, spec.description, spec.input_schema, spec.strict)


# --- messages


def messages_of(wire: MessagesRequest, offered: Offered) -> Iterator[Message]:
    """The conversation, system prompt first. Neighbouring assistant messages are one turn to Anthropic, so they are one message.

    Raises RefusalError, naming the field.
    """
    system = _without_billing([Block("text", wire.system)] if isinstance(wire.system, str) else wire.system or [])
    if parts := _parts(system, "system", offered):
        yield Message("system", _content(parts))
    turn: Message | None = None
    for at, message in enumerate(wire.messages):
        for said in _said(message, f"messages[{at}]", offered):
            if said.role != "assistant":
                if turn is not None:
                    yield turn
                turn = None
                yield said
            else:
                turn = said if turn is None else _joined(turn, said)
    if turn is not None:
        yield turn


def _without_billing(system: list[Block]) -> list[Block]:
    if not system or not (system[0].text or "").startswith(BILLING):
        return system
    _, _, rest = (system[0].text or "").partition("\n")
    return [Block("text", rest), *system[1:]] if rest else system[1:]


def _joined(first: Message, then: Message) -> Message:
    parts = [*_as_parts(first.content), *_as_parts(then.content)]
    reasoning = [message.reasoning for message in (first, then) if message.reasoning]
    return _assistant(parts, reasoning, [*first.tool_calls, *then.tool_calls])


def _as_parts(content: str | list[Part] | None) -> list[Part]:
    return _text(content) if isinstance(content, str) else content or []


def _said(wire: WireMessage, field: str, offered: Offered) -> Iterator[Message]:
    """One message as one or several: results of tools are messages of their own."""
    blocks = [Block("text", wire.content)] if isinstance(wire.content, str) else wire.content or []
    match wire.role:
        case "assistant":
            yield from _turn(blocks, f"{field}.content", offered)
        case "system":
            if parts := _parts(blocks, f"{field}.content", offered):
                yield Message("system", _content(parts))
        case "user":
            yield from _user(blocks, f"{field}.content", offered)


def _user(blocks: list[Block], field: str, offered: Offered) -> Iterator[Message]:
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


def _result(block: Block, field: str, offered: Offered) -> Message:
    if block.tool_use_id is None:
        raise invalid(f"{field}.tool_use_id", "required in a tool_result")
    parts = _inner(block.content, f"{field}.content", offered)
    if block.is_error:
        first = parts[0] if parts else None
        told = f"{TOOL_ERROR} {first.text}" if isinstance(first, TextPart) else TOOL_ERROR
        parts = [TextPart(told), *(parts[1:] if isinstance(first, TextPart) else parts)]
    return Message("tool", _content(parts), tool_call_id=block.tool_use_id)


def _turn(blocks: list[Block], field: str, offered: Offered) -> Iterator[Message]:
    """An assistant's; none where all of it was server tools'."""
    parts: list[Part] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    ours = [(at, block) for at, block in enumerate(blocks) if not _is_servers(block)]
    for at, block in ours:
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
    if ours or not blocks:
        yield _assistant(parts, [thought for thought in reasoning if thought], calls)


def _assistant(parts: list[Part], reasoning: list[str], calls: list[ToolCall]) -> Message:
    content = _content(parts) if parts or not (reasoning or calls) else None
    return Message("assistant", content, reasoning="\n".join(reasoning) or None, tool_calls=calls)


def _is_servers(block: Block) -> bool:
    return block.type in SERVER_BLOCKS or block.type.endswith(SERVER_RESULTS)


def _arguments(parsed: Any) -> str:
    """A tool use's input as the model would write it."""
    if parsed is None:
        return "{}"
    held = parsed.get(UNPARSED) if isinstance(parsed, dict) else None
    raw = held.get("raw") if isinstance(held, dict) else None
    return raw if isinstance(raw, str) else _encode(parsed).decode()


# --- content


def _content(parts: list[Part]) -> str | list[Part]:
    if not parts:
        return ""
    only = parts[0]
    return only.text if len(parts) == 1 and isinstance(only, TextPart) else parts


def _inner(content: str | list[Block] | Block | None, field: str, offered: Offered) -> list[Part]:
    if isinstance(content, str):
        content = [Block("text", content)]
    return _parts([content] if isinstance(content, Block) else content or [], field, offered)


def _parts(blocks: Iterable[Block], field: str, offered: Offered) -> list[Part]:
    return [part for at, block in enumerate(blocks) for part in _part(block, f"{field}[{at}]", offered)]


def _part(block: Block, field: str, offered: Offered) -> list[Part]:
    """What of a block the model reads: none of an empty one, several of a document with images."""
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


def _document(block: Block, field: str, offered: Offered) -> list[Part]:
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


def _change(block: Block, field: str, offered: Offered) -> str:
    """A `tool_addition` or `tool_removal`, told where it stands."""
    change = block.tool
    assert change is not None, "asked by the caller"
    if block.type == "tool_removal":
        return f"The tool {change.name or change.server_name} is no longer available."
    if change.definition is not None:
        return inlined(_function(change.definition, f"{field}.tool.definition"))
    return offered.referred(change.name or change.server_name or "")
