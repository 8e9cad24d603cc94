"""Anthropic Messages (POST /v1/messages and its count_tokens, GET /v1/models), by Anthropic's API reference of autumn 2026, betas included.

The same paths are served without /v1, to which the AI SDK's provider posts.

Honoured: system, messages, tools, tool_choice, thinking, output_config (effort, format; a message's effort counts from that message on),
output_format, stop_sequences, temperature, top_p, top_k, max_tokens (the engine's limit if it is missing), stream.

Rules for messages, kept by `anthropic_content.py`: every block keeps its place and has one form. A lone text is a string, several texts are
parts, and empty texts are dropped, so a prompt doesn't change when a harness moves `cache_control` or writes a list as a string. Thinking,
text and tool uses of an assistant turn are one message, and so are neighbouring assistant messages.
- Thinking is the content of its signature if the proxy made that, otherwise the text. Redacted thinking of others is dropped.
- A tool use's input is compact JSON. Arguments that are no JSON object leave in a body as Claude Code's `__unparsedToolInput` and come
  back from it as they were sampled. In a stream all arguments leave as they were sampled.
- A tool's error begins with `[tool error]`. Documents and search results are title, context or address, and text. For a PDF or a document
  at a URL the model reads that it isn't shown.
- Deferred tools are not among the tools. Where a tool_reference or a tool_addition names one, its definition stands as text, as with
  Anthropic; a tool_removal is a line of text. No tool is deferred if all are, or if the request relies on Anthropic's tool search.
- Tools that Anthropic's servers run (web search and fetch, code execution, tool search, MCP) are not shown to the model, and a choice of
  one leaves the model free. Their uses and results in the history are dropped: no model here made them.
- A compaction block is its summary. `clear_at` and context_management remove nothing: prompts only grow.

Ignored: cache_control, citations, metadata, service_tier, speed, inference_geo, container, mcp_servers, fallbacks, billing, profiles,
diagnostics, a task_budget, tools' input_examples and allowed_callers, Claude Code's billing header at the head of `system` (it differs
from task to task), unknown efforts and kinds of thinking, and all unknown fields.
Refused: prefill (a last message of the assistant; it may be counted), max_tokens 0, images and documents by file id, container uploads,
unknown blocks, tools whose schema only Anthropic's models know (bash, text editor, computer, memory, browser), compaction and thread, which
would keep the conversation on the server. A thread is refused with the code at which the official client's tool runner sends it whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from proxy.chat import NOT_GIVEN, Answer, ChatRequest, ForcedTool, NamedFunction, ToolChoice
from proxy.dialects import signature
from proxy.dialects.anthropic_content import UNPARSED, OfferedTools, messages_of
from proxy.dialects.base import Route, Serves, Wire, versioned
from proxy.dialects.codec import decoded, event, invalid, is_object, is_present, refusing_bad_json, stops_of
from proxy.errors import Refusal, RefusalError
from proxy.wire.anthropic_messages import Choice, Format, MessagesRequest
from topics.types.completion import Sampling

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
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
THREAD = "thread"
BUDGETS = ((4096, "low"), (16384, "medium"))
"""The most tokens of a thinking budget for each effort, if no effort is named; any larger budget is high."""

_requests = msgspec.json.Decoder(MessagesRequest)
_encode = msgspec.json.Encoder().encode


class RequestContext(msgspec.Struct, frozen=True):
    """The parts of a request that its answer needs."""

    shows_thinking: bool
    """Thinking leaves with its text, not only its signature."""


class AnthropicMessages:
    """The dialect `anthropic_messages`."""

    name = "anthropic_messages"
    routes: tuple[Route, ...] = (
        *versioned(
            Route("POST", "/messages", Serves.CALL),
            Route("POST", "/messages/count_tokens", Serves.COUNT),
            Route("GET", "/models", Serves.MODELS),
            Route("GET", "/models/{model:.+}", Serves.MODELS),
        ),
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
        """The canonical request. Raises RefusalError, naming the field."""
        with refusing_bad_json():
            return _canonical(decoded(wire.body, _requests), wire.serves)

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

    def models(self, served: Mapping[str, int | None], only: str | None) -> bytes:
        """A page of `model` objects, or one."""
        names = list(served)
        fixed: dict[str, Any] = {"type": "model", "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
        data = [fixed | {"id": name, "display_name": name, "max_input_tokens": served[name]} for name in names]
        page = {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}
        return _encode(page if only is None else data[0])

    def error(self, refused: RefusalError) -> bytes:
        """`{type: error, error: {type, message}}`."""
        error: dict[str, Any] = {"type": TYPES[refused.refusal], "message": _error_message(refused)}
        if refused.field == THREAD:
            error["details"] = {"error_code": "thread_unsupported_request", "unsupported": []}
        return _encode({"type": "error", "error": error, "request_id": None})

    def error_event(self, refused: RefusalError) -> bytes:
        """The same object as an event `error`, after which the stream ends."""
        return b"event: error\ndata: " + self.error(refused) + b"\n\n"


# --- request to canonical


def _canonical(wire: MessagesRequest, serves: Serves) -> ChatRequest:
    for name, raw in (("compaction", wire.compaction), (THREAD, wire.thread)):
        if is_present(raw):
            raise invalid(name, "no state is kept on this server; send the whole conversation")
    offered = OfferedTools(wire.tools or ())
    messages = list(messages_of(wire, offered))
    if not wire.messages or not messages:
        raise invalid("messages", "expected at least one")
    if messages[-1].role == "assistant" and serves is not Serves.COUNT:
        raise invalid("messages", "prefill is not supported; the conversation must end with a user message")
    choice = wire.tool_choice
    return ChatRequest(
        model=wire.model,
        messages=messages,
        tools=offered.tools,
        hosted_tools=offered.hosted,
        tool_choice=None if choice is None else _tool_choice(choice, offered),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        sampling=Sampling(temperature=wire.temperature, top_p=wire.top_p, top_k=wire.top_k, max_tokens=wire.max_tokens),
        stop=stops_of(wire.stop_sequences, "stop_sequences"),
        response_format=_response_format(wire),
        reasoning_effort=_effort(wire),
        stream=bool(wire.stream),
        stream_usage=bool(wire.stream),
        wire=RequestContext(shows_thinking=wire.thinking is None or wire.thinking.display != "omitted"),
    )


def _tool_choice(wire: Choice, offered: OfferedTools) -> ToolChoice | None:
    if wire.type not in ("auto", "any", "tool", "none"):
        raise invalid("tool_choice.type", f"expected auto, any, tool or none, got {wire.type!r}")
    if wire.type == "tool" and wire.name not in offered.names:
        raise invalid("tool_choice.name", f"no tool is named {wire.name!r}")
    if not offered.tools:
        return None
    if wire.type == "tool" and wire.name is not None:
        is_shown = any(tool.function.name == wire.name for tool in offered.tools)
        return ForcedTool(NamedFunction(wire.name)) if is_shown else "auto"
    return "required" if wire.type == "any" else "none" if wire.type == "none" else "auto"


def _effort(wire: MessagesRequest) -> str | None:
    """The effort; None, the engine's default, for an unknown one."""
    if wire.thinking is not None and wire.thinking.type == "disabled":
        return "none"
    configs = [wire.output_config, *(message.output_config for message in wire.messages)]
    efforts = [config.effort for config in configs if config is not None and config.effort is not None]
    if efforts:
        return EFFORTS.get(efforts[-1])
    budget = wire.thinking.budget_tokens if wire.thinking is not None else None
    return None if budget is None else next((effort for most, effort in BUDGETS if budget <= most), "high")


def _response_format(wire: MessagesRequest) -> msgspec.Raw:
    """The format in OpenAI's form."""
    newer: Format | None = wire.output_config.format if wire.output_config is not None else None
    form = newer or wire.output_format
    if form is None:
        return NOT_GIVEN
    if form.type != "json_schema" or not is_present(form.schema):
        field = "output_format" if newer is None else "output_config.format"
        raise invalid(field, f"expected json_schema with its schema, got {form.type!r}")
    schema = {"name": "output", "schema": form.schema, "strict": True}
    return msgspec.Raw(_encode({"type": "json_schema", "json_schema": schema}))


# --- answer to body and to stream events

StreamedBlock = tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]
"""The block that opens a stream's content block, its deltas, and the whole block."""


def _message(call_id: str, request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """The message without its content."""
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
    # Engines finish a forced call with `stop`.
    return "tool_use" if answer.message.tool_calls else "end_turn"


def _usage(answer: Answer) -> dict[str, Any]:
    """Token counts; input tokens exclude those that were cached."""
    usage = answer.usage
    cached = min(usage.cached or 0, usage.prompt)
    counts: dict[str, Any] = {
        "input_tokens": usage.prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.sampled,
    }
    if usage.reasoning is not None:
        counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return counts


def _blocks(request: ChatRequest, answer: Answer) -> Iterator[StreamedBlock]:
    """Thinking, text and tool uses, as far as the answer has them."""
    message = answer.message
    assert not isinstance(message.content, list), "engines answer in text"
    if message.reasoning:
        is_shown = not isinstance(request.wire, RequestContext) or request.wire.shows_thinking
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
    """Arguments in a body: a JSON object's text as it was sampled, or Claude Code's form for other text."""
    if not arguments:
        return {}
    if is_object(arguments):
        return msgspec.Raw(arguments.encode())
    return {UNPARSED: {"raw": arguments, "len": len(arguments)}}


# --- errors


def _error_message(refused: RefusalError) -> str:
    """The message; for a prompt that is too long, the words at which harnesses compact their history."""
    if refused.refusal is not Refusal.CONTEXT_LENGTH:
        return refused.message
    if refused.context is None:
        return "prompt is too long: it and the answer don't fit into the model's context"
    return f"prompt is too long: {refused.context[0]} tokens > {refused.context[1]} maximum"
