"""Anthropic Messages (POST /v1/messages and its count_tokens, GET /v1/models), by Anthropic's API reference of autumn 2026, betas included.

Honoured: system, messages, tools, tool_choice, thinking, output_config (effort, format; a message's effort counts from there on),
output_format, stop_sequences, temperature, top_p, top_k, max_tokens, stream. Without max_tokens, which Anthropic asks for, the engine's
own limit holds.
Every block stands where it stood, in one form: a lone text is a string, several texts are parts, empty ones are left out; so nothing
changes when a harness moves `cache_control` or writes a list as a string. Text, thinking and tool uses of an assistant turn, and
neighbouring assistant messages, are one message. Rules:
- Thinking is what its signature holds, if it is ours, else the text as it came; redacted thinking that isn't ours is left out.
- A tool use's input is compact JSON; Claude Code's `__unparsedToolInput` is the text that it holds, and the body gives arguments that
  are no JSON object in that form. Streams give arguments as they were sampled.
- A result that is an error begins with `[tool error]`. Documents and search results are their title, context or address, and text;
  of a PDF or a document elsewhere the model is told that it isn't shown.
- Deferred tools are never among the tools: where a tool reference or a `tool_addition` names one, its definition stands there as text, so
  that prompts only grow; a `tool_removal` is a line, too. Where Anthropic's own tool search is declared, which nobody runs here, or all
  tools are deferred, none is.
- Tools that Anthropic's servers run (web_search, web_fetch, code_execution, tool_search, mcp_toolset, …) aren't offered to the model, and
  a choice of one leaves it free; their uses and results in history, which no model here made, are left out.
- A `clear_at` doesn't take a system message away, and context_management edits nothing: prompts only grow.
- A compaction block is its summary.
Ignored: cache_control, metadata, service_tier, speed, container, mcp_servers, fallbacks, citations and all that changes no answer, tools'
input_examples, a task_budget, Claude Code's billing header in `system` (it differs from task to task), and every field that we don't know.
Refused: a last message of the assistant's (prefill), max_tokens 0, images and documents by file id, container uploads, tools whose
schema only Anthropic's models know (bash, text_editor, computer, memory, browser), compaction and thread, which keep state on the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from polar.types.completion import Sampling
from proxy.chat import (
    NOT_GIVEN,
    Answer,
    ChatRequest,
    ForcedTool,
    Function,
    FunctionCall,
    ImagePart,
    ImageUrl,
    Message,
    NamedFunction,
    Part,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
)
from proxy.dialects import signature
from proxy.dialects.base import Route, Serves, Wire
from proxy.dialects.reading import decoded, event
from proxy.errors import Refusal, Refused
from proxy.wire.anthropic_messages import Block, Choice, Format, MessagesRequest, Source, ToolSpec, WireMessage

TYPES: dict[Refusal, str] = {
    Refusal.INVALID: "invalid_request_error",
    Refusal.CONTEXT_LENGTH: "invalid_request_error",
    Refusal.UNAUTHENTICATED: "authentication_error",
    Refusal.SPENT: "permission_error",
    Refusal.NOT_FOUND: "not_found_error",
    Refusal.SLOW: "timeout_error",
    Refusal.CLOSED: "conflict_error",
    Refusal.TOO_LARGE: "request_too_large",
    Refusal.UPGRADE: "invalid_request_error",
    Refusal.OVERLOADED: "rate_limit_error",
    Refusal.BAD_ENGINE: "api_error",
    Refusal.UNAVAILABLE: "api_error",
}
"""Anthropic's error type by refusal."""
BILLING = "x-anthropic-billing-header:"
"""How the block of Claude Code's begins that names its version, with a hash of the first prompt."""
TOOL_ERROR = "[tool error]"
UNPARSED = "__unparsedToolInput"
"""Claude Code's name for arguments that are no JSON object: `{"__unparsedToolInput": {"raw": …, "len": …}}`."""
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
BUDGETS = ((4096, "low"), (16384, "medium"))
"""Tokens of a thinking budget up to which an effort is meant, where none is said; beyond them all it is high."""
ANTHROPICS_OWN = ("bash_", "text_editor_", "computer_", "memory_", "browser_")
"""Types of tools that the harness runs, without a schema in the request."""
SERVER_BLOCKS = frozenset({"server_tool_use", "mcp_tool_use", "mcp_tool_result", "mcp_tool_listing", "fallback"})
SERVER_RESULTS = "_tool_result"
"""How the types of all other server tools' results end."""
NOTHING = (b"", b"null")

_requests = msgspec.json.Decoder(MessagesRequest)
_objects = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder().encode


class Shown(msgspec.Struct, frozen=True):
    """What the answer needs of its request."""

    thinking: bool
    """Its text, not only its signature."""


class AnthropicMessages:
    """The dialect `anthropic_messages`."""

    name = "anthropic_messages"
    routes: tuple[Route, ...] = (
        Route("POST", "/v1/messages", Serves.CALL),
        Route("POST", "/v1/messages/count_tokens", Serves.COUNT),
        Route("GET", "/v1/models", Serves.MODELS),
        Route("GET", "/v1/models/{model:.+}", Serves.MODELS),
        Route("HEAD", "/", Serves.GREETING),
        Route("GET", "/", Serves.GREETING),
        Route("HEAD", "/api/hello", Serves.GREETING),
        Route("GET", "/api/hello", Serves.GREETING),
    )
    signs: frozenset[str] = frozenset({"anthropic-version", "anthropic-beta"})
    id_prefix = "msg_"
    keep_alive = event({"type": "ping"}, "ping")
    request_type = MessagesRequest

    def parse(self, wire: Wire) -> ChatRequest:
        """The canonical request. Raises Refused, naming the field."""
        try:
            return _canonical(decoded(wire.body, _requests))
        except RecursionError:
            raise Refused(Refusal.INVALID, "the request's body is nested too deeply") from None

    def body(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:  # noqa: ARG002 - no time in it
        """`message`."""
        [answer] = answers
        content = [whole for _, _, whole in _blocks(request, answer)]
        return _encode(_message(call_id, request, answer) | {"content": content})

    def stream(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:  # noqa: ARG002 - no time in it
        """`message_start`, each block's start, deltas and stop, `message_delta`, `message_stop`."""
        [answer] = answers
        whole = _message(call_id, request, answer)
        begun = {"stop_reason": None, "stop_sequence": None, "usage": _usage(answer) | {"output_tokens": 0}}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": whole | begun}]
        for index, (opening, deltas, _) in enumerate(_blocks(request, answer)):
            events.append({"type": "content_block_start", "index": index, "content_block": opening})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        ending = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
        events += [{"type": "message_delta", "delta": ending, "usage": whole["usage"]}, {"type": "message_stop"}]
        return b"".join(event(payload, payload["type"]) for payload in events)

    def count(self, tokens: int) -> bytes:
        """`{input_tokens}`."""
        return _encode({"input_tokens": tokens})

    def models(self, served: Sequence[str], only: str | None) -> bytes:
        """A page of `model` objects, or one."""
        names = served if only is None else [only]
        data = [
            {
                "type": "model",
                "id": name,
                "display_name": name,
                "created_at": "1970-01-01T00:00:00Z",
                "lifecycle": "active",
            }
            for name in names
        ]
        page = {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}
        return _encode(page if only is None else data[0])

    def error(self, refused: Refused) -> bytes:
        """`{type: error, error: {type, message}}`."""
        told = {"type": TYPES[refused.refusal], "message": _told(refused)}
        return _encode({"type": "error", "error": told, "request_id": None})

    def error_event(self, refused: Refused) -> bytes:
        """The same object as an event `error`, after which the stream ends."""
        return b"event: error\ndata: " + self.error(refused) + b"\n\n"


def _told(refused: Refused) -> str:
    """Of a prompt that is too long in the words by which harnesses know to compact."""
    if refused.refusal is not Refusal.CONTEXT_LENGTH:
        return refused.message
    if refused.context is None:
        return "prompt is too long: it and the answer don't fit into the model's context"
    return f"prompt is too long: {refused.context[0]} tokens > {refused.context[1]} maximum"


# --- request to canonical


def _canonical(wire: MessagesRequest) -> ChatRequest:
    for name, raw in (("compaction", wire.compaction), ("thread", wire.thread)):
        if bytes(raw) not in NOTHING:
            raise _refused(name, "no state is kept on this server; send the conversation whole")
    offered = Offered(wire.tools or ())
    messages = list(_messages(wire, offered))
    if not messages:
        raise _refused("messages", "expected at least one")
    if messages[-1].role == "assistant" and wire.max_tokens is not None:
        raise _refused("messages", "prefill is not supported; the conversation must end with a user message")
    choice = wire.tool_choice
    return ChatRequest(
        model=wire.model,
        messages=messages,
        tools=offered.tools,
        tool_choice=None if choice is None else _tool_choice(choice, offered),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        sampling=Sampling(temperature=wire.temperature, top_p=wire.top_p, top_k=wire.top_k, max_tokens=wire.max_tokens),
        stop=wire.stop_sequences or [],
        response_format=_response_format(wire),
        reasoning_effort=_effort(wire),
        stream=bool(wire.stream),
        stream_usage=bool(wire.stream),
        wire=Shown(thinking=wire.thinking is None or wire.thinking.display != "omitted"),
    )


def _refused(field: str, why: str) -> Refused:
    return Refused(Refusal.INVALID, f"{field}: {why}", field=field)


# --- messages


def _messages(wire: MessagesRequest, offered: Offered) -> Iterator[Message]:
    """Neighbouring assistant messages as one: to Anthropic they are one turn."""
    system = _without_billing([Block("text", wire.system)] if isinstance(wire.system, str) else wire.system or [])
    if system:
        yield Message("system", _content(_parts(system, "system", offered)))
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
    return [TextPart(content)] if isinstance(content, str) else content or []


def _said(wire: WireMessage, field: str, offered: Offered) -> Iterator[Message]:
    """One message as one or several: results of tools are messages of their own."""
    blocks = [Block("text", wire.content)] if isinstance(wire.content, str) else wire.content or []
    match wire.role:
        case "assistant":
            yield from _turn(blocks, f"{field}.content", offered)
        case "system":
            if blocks:
                yield Message("system", _content(_parts(blocks, f"{field}.content", offered)))
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
        raise _refused(f"{field}.tool_use_id", "required in a tool_result")
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
                    raise _refused(where, "a tool_use needs id and name")
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
    match parsed:
        case {"__unparsedToolInput": {"raw": str(raw)}}:
            return raw
        case None:
            return "{}"
    return _encode(parsed).decode()


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
                raise _refused(f"{field}.text", "required in a text block")
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
    raise _refused(f"{field}.type", f"a block of type {block.type!r} can't be carried here")


def _text(text: str) -> list[Part]:
    return [TextPart(text)] if text else []


def _image(source: str | Source | None, field: str) -> str:
    match source:
        case Source(type="base64", media_type=str(media_type), data=str(data)):
            return f"data:{media_type};base64,{data}"
        case Source(type="url", url=str(url)):
            return url
    kind = source.type if isinstance(source, Source) else None
    raise _refused(field, f"expected an image as base64 with its media_type, or a url; got {kind!r}")


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
    raise _refused(f"{field}.source", "expected a document of type text, content, base64 or url")


def _change(block: Block, field: str, offered: Offered) -> str:
    """A `tool_addition` or `tool_removal`, told where it stands."""
    change = block.tool
    assert change is not None, "asked by the caller"
    if block.type == "tool_removal":
        return f"The tool {change.name or change.server_name} is no longer available."
    if change.definition is not None:
        return _definition(_function(change.definition, f"{field}.tool.definition"))
    return offered.referred(change.name or change.server_name or "")


# --- tools


class Offered:
    """A request's tools: those that the model is shown from the start, and those that wait for a reference."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        """Raises Refused for a tool that can't be offered."""
        self.names = frozenset(spec.name for spec in specs)
        functions = [
            (spec, _function(spec, f"tools[{at}]")) for at, spec in enumerate(specs) if not _is_server_tool(spec, at)
        ]
        searched_elsewhere = any((spec.type or "").startswith("tool_search_tool_") for spec in specs)
        deferring = not searched_elsewhere and not all(spec.defer_loading for spec, _ in functions)
        self.tools = [Tool(function) for spec, function in functions if not (deferring and spec.defer_loading)]
        self._deferred = {function.name: function for spec, function in functions if deferring and spec.defer_loading}

    def referred(self, name: str) -> str:
        """What the model reads where a tool is referred to: the definition of a deferred one."""
        deferred = self._deferred.get(name)
        return f"The tool {name} is available." if deferred is None else _definition(deferred)


def _is_server_tool(spec: ToolSpec, at: int) -> bool:
    if spec.type in (None, "custom") or bytes(spec.input_schema) not in NOTHING:
        return False
    assert spec.type is not None, "a function's type may be missing"
    if spec.type.startswith(ANTHROPICS_OWN):
        raise _refused(
            f"tools[{at}].type", f"only Anthropic's models know {spec.type!r}; declare it with an input_schema"
        )
    return True


def _function(spec: ToolSpec, field: str) -> Function:
    if not spec.name:
        raise _refused(f"{field}.name", "required")
    if bytes(spec.input_schema) in NOTHING:
        raise _refused(f"{field}.input_schema", "required")
    return Function(spec.name, spec.description, spec.input_schema, spec.strict)


def _definition(function: Function) -> str:
    return f"<function>{_encode(function).decode()}</function>"


def _tool_choice(wire: Choice, offered: Offered) -> ToolChoice | None:
    if wire.type not in ("auto", "any", "tool", "none"):
        raise _refused("tool_choice.type", f"expected auto, any, tool or none, got {wire.type!r}")
    if wire.type == "tool" and wire.name not in offered.names:
        raise _refused("tool_choice.name", f"no tool is named {wire.name!r}")
    if not offered.tools:
        return None
    if wire.type == "tool" and wire.name is not None:
        is_shown = any(tool.function.name == wire.name for tool in offered.tools)
        return ForcedTool(NamedFunction(wire.name)) if is_shown else "auto"
    return "required" if wire.type == "any" else "none" if wire.type == "none" else "auto"


# --- output


def _effort(wire: MessagesRequest) -> str | None:
    """One that we don't know is the engine's default."""
    if wire.thinking is not None and wire.thinking.type == "disabled":
        return "none"
    configs = [wire.output_config, *(message.output_config for message in wire.messages)]
    said = [config.effort for config in configs if config is not None and config.effort is not None]
    if said:
        return EFFORTS.get(said[-1])
    budget = wire.thinking.budget_tokens if wire.thinking is not None else None
    return None if budget is None else next((effort for most, effort in BUDGETS if budget <= most), "high")


def _response_format(wire: MessagesRequest) -> msgspec.Raw:
    """OpenAI's form of it."""
    asked: Format | None = wire.output_config.format if wire.output_config is not None else None
    field = "output_config.format" if asked is not None else "output_format"
    asked = asked or wire.output_format
    if asked is None:
        return NOT_GIVEN
    if asked.type != "json_schema" or bytes(asked.schema) in NOTHING:
        raise _refused(field, f"expected json_schema with its schema, got {asked.type!r}")
    schema = {"name": "output", "schema": asked.schema, "strict": True}
    return msgspec.Raw(_encode({"type": "json_schema", "json_schema": schema}))


# --- answer to wire

StreamedBlock = tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]
"""A content block as a stream opens it, its deltas, and the block whole."""


def _message(call_id: str, request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """A message without its content."""
    return {
        "id": call_id,
        "type": "message",
        "role": "assistant",
        "model": request.model or answer.model,
        "content": [],
        "stop_reason": _stop_reason(answer),
        "stop_sequence": answer.stop_sequence if _stop_reason(answer) == "stop_sequence" else None,
        "usage": _usage(answer),
    }


def _stop_reason(answer: Answer) -> str:
    match answer.finish_reason:
        case "length":
            return "max_tokens"
        case "content_filter":
            return "refusal"
        case "stop" if answer.stop_sequence is not None:
            return "stop_sequence"
    # Engines finish a call that was forced with `stop`.
    return "tool_use" if answer.message.tool_calls else "end_turn"


def _usage(answer: Answer) -> dict[str, Any]:
    """Prompt tokens that were cached are not among the input tokens."""
    usage = answer.usage
    cached = min(usage.cached or 0, usage.prompt)
    told: dict[str, Any] = {
        "input_tokens": usage.prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.sampled,
    }
    if usage.reasoning is not None:
        told["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return told


def _blocks(request: ChatRequest, answer: Answer) -> Iterator[StreamedBlock]:
    """Thinking, text, tool uses; no block for what isn't there."""
    message = answer.message
    assert not isinstance(message.content, list), "engines answer in text"
    if message.reasoning:
        is_shown = not isinstance(request.wire, Shown) or request.wire.thinking
        shown = message.reasoning if is_shown else ""
        sealed = signature.seal(message.reasoning)
        deltas = [{"type": "thinking_delta", "thinking": shown}] if shown else []
        yield (
            {"type": "thinking", "thinking": "", "signature": ""},
            [*deltas, {"type": "signature_delta", "signature": sealed}],
            {"type": "thinking", "thinking": shown, "signature": sealed},
        )
    if message.content:
        whole = {"type": "text", "text": message.content}
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": message.content}], whole
    for call in message.tool_calls:
        opening = {"type": "tool_use", "id": call.id, "name": call.function.name, "input": {}}
        arguments = call.function.arguments
        deltas = [{"type": "input_json_delta", "partial_json": arguments}]
        yield opening, deltas, opening | {"input": _input(arguments)}


def _input(arguments: str) -> msgspec.Raw | dict[str, Any]:
    """Arguments in a body: the very text of a JSON object."""
    if not arguments:
        return {}
    try:
        _objects.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {UNPARSED: {"raw": arguments, "len": len(arguments)}}
    return msgspec.Raw(arguments.encode())
