"""OpenAI Chat Completions (POST /v1/chat/completions, GET /v1/models), by OpenAI's API reference of 2026.

Honoured: messages (text and images), tools, tool_choice, parallel_tool_calls, sampling parameters, stop, response_format,
reasoning_effort, stream, stream_options; both spellings of reasoning in an assistant turn, `reasoning_content` and `reasoning`.
Ignored: fields that change no answer (store, metadata, user, service_tier, …), logprobs, which are the log's and never leave, logit_bias,
and every field that we don't know. Refused: n above 128, audio and file parts, custom tools, the deprecated functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec

from polar.types.completion import Sampling
from proxy.chat import (
    NOT_GIVEN,
    Answer,
    ChatRequest,
    FinishReason,
    FunctionCall,
    ImagePart,
    ImageUrl,
    Message,
    Part,
    Role,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
)
from proxy.dialects.base import Route, Serves, Wire
from proxy.dialects.reading import decoded, event, invalid_field
from proxy.errors import Refusal, Refused

SHAPES: dict[Refusal, tuple[str, str | None]] = {
    Refusal.INVALID: ("invalid_request_error", None),
    Refusal.CONTEXT_LENGTH: ("invalid_request_error", "context_length_exceeded"),
    Refusal.UNAUTHENTICATED: ("invalid_request_error", "invalid_api_key"),
    Refusal.SPENT: ("insufficient_quota", "session_limit_exceeded"),
    Refusal.NOT_FOUND: ("invalid_request_error", "unknown_url"),
    Refusal.SLOW: ("invalid_request_error", "request_timeout"),
    Refusal.CLOSED: ("invalid_request_error", "session_closed"),
    Refusal.TOO_LARGE: ("invalid_request_error", "request_too_large"),
    Refusal.UPGRADE: ("invalid_request_error", "upgrade_required"),
    Refusal.OVERLOADED: ("requests", "rate_limit_exceeded"),
    Refusal.BAD_ENGINE: ("server_error", "bad_gateway"),
    Refusal.UNAVAILABLE: ("server_error", "service_unavailable"),
}
"""OpenAI's `type` and `code` by refusal; clients decide on these whether to try again."""
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What the log can hold; JSON knows no bound."""


class WirePart(msgspec.Struct):
    """A content part of any kind; `_part` refuses those that can't be carried."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | None = None


class WireFunctionCall(msgspec.Struct):
    """A function call as a harness repeats it."""

    name: str
    arguments: str | None = None


class WireToolCall(msgspec.Struct):
    """A tool call as a harness repeats it."""

    id: str = ""
    type: str = "function"
    function: WireFunctionCall | None = None


class WireMessage(msgspec.Struct):
    """A message as harnesses write it: unknown fields are skipped, nulls and missing content are the same."""

    role: Role
    content: str | list[WirePart] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[WireToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    refusal: str | None = None


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class ToolType(msgspec.Struct):
    """Looked at alone, so that a tool of another kind is refused by its name."""

    type: str = "function"


class WireFormat(msgspec.Struct):
    """`response_format`, as far as it must be understood here."""

    type: str


class WireRequest(msgspec.Struct):
    """A request's fields, all that are honoured and those that are refused."""

    messages: list[WireMessage]
    model: str | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: ToolChoice | None = None
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
    response_format: msgspec.Raw = NOT_GIVEN
    reasoning_effort: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    functions: msgspec.Raw = NOT_GIVEN


_requests = msgspec.json.Decoder(WireRequest)
_tools = msgspec.json.Decoder(Tool)
_tool_types = msgspec.json.Decoder(ToolType)
_formats = msgspec.json.Decoder(WireFormat)
_encode = msgspec.json.Encoder().encode
NOTHING = (b"", b"null")
MAX_CHOICES = 128
"""Of one request, as with OpenAI."""


class OpenAIChat:
    """The dialect `openai_chat`."""

    name = "openai_chat"
    routes: tuple[Route, ...] = (
        Route("POST", "/v1/chat/completions", Serves.CALL),
        Route("GET", "/v1/models", Serves.MODELS),
        Route("GET", "/v1/models/{model:.+}", Serves.MODELS),
    )
    signs: frozenset[str] = frozenset()
    id_prefix = "chatcmpl-"
    keep_alive = b": keep-alive\n\n"
    request_type = WireRequest

    def parse(self, wire: Wire) -> ChatRequest:
        """The canonical request. Raises Refused, naming the field."""
        return _canonical(decoded(wire.body, _requests))

    def body(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """`chat.completion`."""
        return _encode(
            {
                "id": call_id,
                "object": "chat.completion",
                "created": created,
                "model": request.model or answers[0].model,
                "choices": [_choice(index, answer) for index, answer in enumerate(answers)],
                "usage": _usage(answers),
            }
        )

    def stream(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """Of each choice role, reasoning, content, tool calls, finish reason; then usage if asked for, `[DONE]`."""
        head = {
            "id": call_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": request.model or answers[0].model,
        }
        # With include_usage every other chunk says `usage: null`, as OpenAI's do.
        tail: dict[str, Any] = {"usage": None} if request.stream_usage else {}
        events = [
            event(
                head | {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}]} | tail
            )
            for index, answer in enumerate(answers)
            for delta, reason in _deltas(answer)
        ]
        if request.stream_usage:
            events.append(event(head | {"choices": [], "usage": _usage(answers)}))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def count(self, tokens: int) -> bytes:
        """OpenAI counts no chat: no route of this dialect leads here."""
        raise NotImplementedError(tokens)

    def models(self, served: Sequence[str], only: str | None) -> bytes:
        """`list` of `model` objects, or one."""
        names = served if only is None else [only]
        data = [{"id": model, "object": "model", "created": 0, "owned_by": "polar"} for model in names]
        return _encode({"object": "list", "data": data} if only is None else data[0])

    def error(self, refused: Refused) -> bytes:
        """`{error: {message, type, param, code}}`."""
        kind, code = SHAPES[refused.refusal]
        return _encode({"error": {"message": refused.message, "type": kind, "param": refused.field, "code": code}})

    def error_event(self, refused: Refused) -> bytes:
        """The same object as an event; the stream ends without `[DONE]`."""
        return b"data: " + self.error(refused) + b"\n\n"


# --- request to canonical


def _canonical(wire: WireRequest) -> ChatRequest:
    _refuse(wire)
    return ChatRequest(
        model=wire.model,
        messages=[_message(message, f"messages[{at}]") for at, message in enumerate(wire.messages)],
        tools=[_tool(tool, f"tools[{at}]") for at, tool in enumerate(wire.tools or ())],
        tool_choice=wire.tool_choice,
        parallel_tool_calls=wire.parallel_tool_calls,
        sampling=Sampling(
            temperature=wire.temperature,
            top_p=wire.top_p,
            top_k=wire.top_k,
            min_p=wire.min_p,
            presence_penalty=wire.presence_penalty,
            frequency_penalty=wire.frequency_penalty,
            repetition_penalty=wire.repetition_penalty,
            seed=wire.seed,
            max_tokens=wire.max_completion_tokens if wire.max_completion_tokens is not None else wire.max_tokens,
        ),
        stop=[wire.stop] if isinstance(wire.stop, str) else wire.stop or [],
        response_format=_response_format(wire.response_format),
        reasoning_effort=wire.reasoning_effort,
        choices=wire.n or 1,
        stream=bool(wire.stream),
        stream_usage=wire.stream_options is not None and bool(wire.stream_options.include_usage),
    )


def _refuse(wire: WireRequest) -> None:
    if not wire.messages:
        raise Refused(Refusal.INVALID, "messages: expected at least one", field="messages")
    if wire.n is not None and not 1 <= wire.n <= MAX_CHOICES:
        raise Refused(Refusal.INVALID, f"n: expected 1 to {MAX_CHOICES}, got {wire.n}", field="n")
    if bytes(wire.functions) not in NOTHING:
        raise Refused(Refusal.INVALID, "functions: deprecated and not served; use tools", field="functions")


def _message(wire: WireMessage, field: str) -> Message:
    content: str | list[Part] | None
    if isinstance(wire.content, list):
        content = [_part(part, f"{field}.content[{at}]") for at, part in enumerate(wire.content)]
    else:
        content = wire.content if wire.content is not None else wire.refusal
    if wire.role == "tool" and wire.tool_call_id is None:
        raise Refused(Refusal.INVALID, f"{field}.tool_call_id: required for role tool", field=f"{field}.tool_call_id")
    return Message(
        role=wire.role,
        content=content,
        reasoning=wire.reasoning_content if wire.reasoning_content is not None else wire.reasoning,
        tool_calls=[_tool_call(call, f"{field}.tool_calls[{at}]") for at, call in enumerate(wire.tool_calls or ())],
        tool_call_id=wire.tool_call_id,
        name=wire.name,
    )


def _part(wire: WirePart, field: str) -> Part:
    if wire.type == "text" and wire.text is not None:
        return TextPart(wire.text)
    if wire.type == "refusal" and wire.refusal is not None:
        return TextPart(wire.refusal)
    if wire.type == "image_url" and wire.image_url is not None:
        return ImagePart(wire.image_url)
    raise Refused(
        Refusal.INVALID, f"{field}: expected a text or image_url part with its value, got {wire.type!r}", field=field
    )


def _tool_call(wire: WireToolCall, field: str) -> ToolCall:
    if wire.function is None:
        raise Refused(Refusal.INVALID, f"{field}: only function calls are served, got {wire.type!r}", field=field)
    return ToolCall(wire.id, FunctionCall(wire.function.name, wire.function.arguments or ""))


def _tool(raw: msgspec.Raw, field: str) -> Tool:
    try:
        kind = _tool_types.decode(raw).type
        if kind != "function":
            raise Refused(
                Refusal.INVALID, f"{field}.type: only function tools are served, got {kind!r}", field=f"{field}.type"
            )
        return _tools.decode(raw)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error), field) from None


def _response_format(raw: msgspec.Raw) -> msgspec.Raw:
    """Nothing for plain text, which holds the model to nothing."""
    if bytes(raw) in NOTHING:
        return NOT_GIVEN
    try:
        kind = _formats.decode(raw).type
    except msgspec.ValidationError:
        kind = None
    if kind not in ("text", "json_object", "json_schema"):
        raise Refused(
            Refusal.INVALID,
            f"response_format.type: expected text, json_object or json_schema, got {kind!r}",
            field="response_format.type",
        )
    return NOT_GIVEN if kind == "text" else raw


# --- answer to wire


def _text(message: Message) -> str | None:
    assert not isinstance(message.content, list), "engines answer in text"
    return message.content


def _choice(index: int, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _text(answer.message), "refusal": None}
    if answer.message.reasoning:
        message["reasoning_content"] = answer.message.reasoning
    if answer.message.tool_calls:
        message["tool_calls"] = answer.message.tool_calls
    return {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}


def _usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """The prompt's tokens once, the sampled ones of all choices."""
    prompt = answers[0].usage.prompt
    sampled = sum(answer.usage.sampled for answer in answers)
    told: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }
    if answers[0].usage.cached is not None:
        told["prompt_tokens_details"] = {"cached_tokens": answers[0].usage.cached}
    return told


Delta = tuple[dict[str, Any], FinishReason | None]


def _deltas(answer: Answer) -> Iterator[Delta]:
    message = answer.message
    text = _text(message)
    opening = None if text is None else ""
    yield {"role": "assistant", "content": opening, "refusal": None}, None
    if message.reasoning:
        yield {"reasoning_content": message.reasoning}, None
    if text:
        yield {"content": text}, None
    for at, call in enumerate(message.tool_calls):
        named = {"name": call.function.name, "arguments": ""}
        yield {"tool_calls": [{"index": at, "id": call.id, "type": "function", "function": named}]}, None
        if call.function.arguments:
            yield {"tool_calls": [{"index": at, "function": {"arguments": call.function.arguments}}]}, None
    yield {}, answer.finish_reason
