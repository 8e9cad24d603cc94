"""OpenAI Chat Completions (POST /v1/chat/completions, GET /v1/models), by OpenAI's API reference of autumn 2026.

Honoured: messages, tools, tool_choice, parallel_tool_calls, temperature, top_p, top_k, min_p, the penalties, seed, max_completion_tokens
(and max_tokens, if that is missing), stop, response_format, reasoning_effort, n, stream, stream_options.include_usage.

Rules:
- Messages keep their places and roles. Part lists stay lists, and tool arguments stay the very string. A refusal is text. Reasoning is read
  in both spellings, `reasoning_content` and `reasoning`, and written in the first.
- Reasoning that a client leaves out is restored from the session's answers (`proxy/session/turns.py`).
- A text without calls or reasoning right after calls without a text is the text of that turn: Codex 0.94 splits a turn in this way.
- A custom tool is a function with one string, `input`; its grammar is described, not enforced. Its calls leave as custom calls; arguments
  without an input leave as the input.
- Only `allowed_tools` are shown. A tool_choice without tools has no effect.
- Sounds by value are carried; a model that takes none makes the server refuse the call.
- Text files are their text, and image files are images. For other files the model reads that they aren't shown.
- Effort minimal is low; xhigh and max are high; unknown names have no effect.
- Each of n choices is a call of its own on the log. Usage counts the prompt once.
Ignored: logprobs and top_logprobs (the log keeps them; they never leave), logit_bias (its ids are of OpenAI's tokenizers), audio (a format
of answers that are never made), metadata, moderation, prediction, prompt caching, safety_identifier, service_tier, store, user, verbosity,
web_search_options, stream_options.include_obfuscation, and all unknown fields, such as litellm's provider_specific_fields.
Refused: n above 128; audio of earlier answers; files by id; answers in audio alone; tools of other kinds; a choice of a tool that isn't
declared; the deprecated functions and function_call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from proxy.chat import (
    NOT_GIVEN,
    Answer,
    AudioPart,
    AudioUrl,
    ChatRequest,
    FinishReason,
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
from proxy.dialects import freeform
from proxy.dialects.base import Route, Serves, Wire, versioned
from proxy.dialects.codec import decoded, event, file_text, invalid, is_present, stops_of
from proxy.errors import Refusal, RefusalError
from proxy.wire.openai_chat import (
    ChatCompletionRequest,
    Choice,
    ResponseFormat,
    ToolName,
    ToolSpec,
    WireAudio,
    WireFile,
    WireMessage,
    WirePart,
    WireToolCall,
)
from topics.types.completion import Sampling

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
"""OpenAI's error `type` and `code` by refusal; clients retry or give up by these."""
EFFORTS = {
    "none": "none",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
AUDIO_FORMAT = re.compile("[a-z0-9.+-]{1,32}")
"""Part of a MIME type."""
MAX_CHOICES = 128
"""Limit of `n`, as at OpenAI."""
_requests = msgspec.json.Decoder(ChatCompletionRequest)
_formats = msgspec.json.Decoder(ResponseFormat)
_encode = msgspec.json.Encoder().encode


class OpenAIChat:
    """The dialect `openai_chat`."""

    name = "openai_chat"
    routes: tuple[Route, ...] = versioned(
        Route("POST", "/chat/completions", Serves.CALL),
        Route("GET", "/models", Serves.MODELS),
        Route("GET", "/models/{model:.+}", Serves.MODELS),
    )
    signs: frozenset[str] = frozenset()
    id_prefix = "chatcmpl-"
    keep_alive = b": keep-alive\n\n"
    request_type = ChatCompletionRequest

    def parse(self, wire: Wire) -> ChatRequest:
        """The canonical request. Raises RefusalError, naming the field."""
        return _canonical(decoded(wire.body, _requests))

    def body(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """`chat.completion`."""
        return _encode(
            {
                "id": call_id,
                "object": "chat.completion",
                "created": created,
                "model": request.model or answers[0].model,
                "choices": [_choice(index, answer, _customs(request)) for index, answer in enumerate(answers)],
                "usage": _usage(answers),
            }
        )

    def stream(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """For each choice role, reasoning, content, tool calls and finish reason; then usage if requested, and `[DONE]`."""
        head = {
            "id": call_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": request.model or answers[0].model,
        }
        # With include_usage every other chunk has `usage: null`, as OpenAI's do.
        tail: dict[str, Any] = {"usage": None} if request.stream_usage else {}
        events = [
            event(
                head | {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}]} | tail
            )
            for index, answer in enumerate(answers)
            for delta, reason in _deltas(answer, _customs(request))
        ]
        if request.stream_usage:
            events.append(event(head | {"choices": [], "usage": _usage(answers)}))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def count(self, tokens: int) -> bytes:
        """Not served: OpenAI has no route that counts a chat's tokens."""
        raise NotImplementedError(tokens)

    def models(self, served: Mapping[str, int | None], only: str | None) -> bytes:
        """`list` of `model` objects, or one, with vLLM's `max_model_len`."""
        fixed: dict[str, Any] = {"object": "model", "created": 0, "owned_by": "polar"}
        data = [fixed | {"id": model, "max_model_len": context} for model, context in served.items()]
        return _encode({"object": "list", "data": data} if only is None else data[0])

    def error(self, refused: RefusalError) -> bytes:
        """`{error: {message, type, param, code}}`."""
        kind, code = SHAPES[refused.refusal]
        return _encode({"error": {"message": refused.message, "type": kind, "param": refused.field, "code": code}})

    def error_event(self, refused: RefusalError) -> bytes:
        """The same object as an event; the stream ends without `[DONE]`."""
        return b"data: " + self.error(refused) + b"\n\n"


# --- request to canonical


def _canonical(wire: ChatCompletionRequest) -> ChatRequest:
    _refuse(wire)
    tools = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(wire.tools or ())]
    choice, shown = _tool_choice(wire.tool_choice, tools) if tools else (None, tools)
    return ChatRequest(
        model=wire.model,
        messages=_rejoined(_message(message, f"messages[{at}]") for at, message in enumerate(wire.messages)),
        tools=shown,
        tool_choice=choice,
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
        stop=stops_of([wire.stop] if isinstance(wire.stop, str) else wire.stop, "stop"),
        response_format=_response_format(wire.response_format),
        reasoning_effort=EFFORTS.get(wire.reasoning_effort or ""),
        choices=1 if wire.n is None else wire.n,
        stream=bool(wire.stream),
        stream_usage=wire.stream_options is not None and bool(wire.stream_options.include_usage),
        wire=frozenset(tool.custom.name for tool in wire.tools or () if tool.custom is not None),
    )


def _refuse(wire: ChatCompletionRequest) -> None:
    if not wire.messages:
        raise invalid("messages", "expected at least one")
    if wire.n is not None and not 1 <= wire.n <= MAX_CHOICES:
        raise invalid("n", f"expected 1 to {MAX_CHOICES}, got {wire.n}")
    if wire.modalities and "text" not in wire.modalities:
        raise invalid("modalities", f"expected text among them, got {wire.modalities!r}")
    for name, deprecated in (("functions", wire.functions), ("function_call", wire.function_call)):
        if is_present(deprecated):
            raise invalid(name, "deprecated and not served; use tools and tool_choice")


def _message(wire: WireMessage, field: str) -> Message:
    content: str | list[Part] | None
    if isinstance(wire.content, list):
        content = [_part(part, f"{field}.content[{at}]") for at, part in enumerate(wire.content)]
    else:
        content = wire.content if wire.content is not None else wire.refusal
    if wire.role == "tool" and wire.tool_call_id is None:
        raise invalid(f"{field}.tool_call_id", "required for role tool")
    if is_present(wire.function_call):
        raise invalid(f"{field}.function_call", "deprecated and not served; use tool_calls")
    if is_present(wire.audio):
        raise invalid(f"{field}.audio", "no answer here was audio")
    return Message(
        role=wire.role,
        content=content,
        reasoning=wire.reasoning_content if wire.reasoning_content is not None else wire.reasoning,
        tool_calls=[_tool_call(call, f"{field}.tool_calls[{at}]") for at, call in enumerate(wire.tool_calls or ())],
        tool_call_id=wire.tool_call_id,
        name=wire.name,
    )


def _rejoined(messages: Iterable[Message]) -> list[Message]:
    """The messages, with each text that follows its turn's calls back in that turn."""
    joined: list[Message] = []
    for message in messages:
        before = joined[-1] if joined else None
        if before is not None and before.tool_calls and not before.content and _is_text(message):
            joined[-1] = msgspec.structs.replace(before, content=message.content)
        else:
            joined.append(message)
    return joined


def _is_text(message: Message) -> bool:
    return message.role == "assistant" and bool(message.content) and not (message.tool_calls or message.reasoning)


def _part(wire: WirePart, field: str) -> Part:
    match wire:
        case WirePart(type="text", text=str(text)) | WirePart(type="refusal", refusal=str(text)):
            return TextPart(text)
        case WirePart(type="image_url", image_url=ImageUrl() as url):
            return ImagePart(url)
        case WirePart(type="input_audio", input_audio=WireAudio() as audio):
            return AudioPart(AudioUrl(_audio_url(audio, field)))
        case WirePart(type="file", file=WireFile(file_data=str(data)) as file):
            return _file(data, file.filename or "file")
    raise invalid(
        field,
        f"expected a part of type text, image_url, input_audio or file (by value) with its value, got {wire.type!r}",
    )


def _audio_url(audio: WireAudio, field: str) -> str:
    if AUDIO_FORMAT.fullmatch(audio.format) is None:
        raise invalid(f"{field}.input_audio.format", f"expected a format such as wav or mp3, got {audio.format!r}")
    return f"data:audio/{audio.format};base64,{audio.data}"


def _file(data: str, name: str) -> Part:
    head, _, encoded = data.partition(",")
    if head.startswith("data:image/"):
        return ImagePart(ImageUrl(data))
    is_text = head.startswith("data:text/") and head.endswith(";base64")
    return TextPart(file_text(name, encoded if is_text else None))


def _tool_call(wire: WireToolCall, field: str) -> ToolCall:
    if wire.function is not None:
        return ToolCall(wire.id, FunctionCall(wire.function.name, wire.function.arguments or ""))
    if wire.custom is not None:
        return ToolCall(wire.id, FunctionCall(wire.custom.name, freeform.arguments_of(wire.custom.input)))
    raise invalid(field, f"expected a function's call or a custom tool's, got {wire.type!r}")


def _tool(wire: ToolSpec, field: str) -> Tool:
    if wire.type == "function" and wire.function is not None:
        spec = wire.function
        parameters = spec.parameters if is_present(spec.parameters) else NOT_GIVEN
        return Tool(Function(spec.name, spec.description, parameters, spec.strict))
    if wire.type == "custom" and wire.custom is not None:
        custom = wire.custom
        grammar = custom.format.grammar if custom.format is not None else None
        if grammar is None:
            return Tool(freeform.function(custom.name, custom.description, None))
        return Tool(freeform.function(custom.name, custom.description, grammar.definition, grammar.syntax))
    if wire.type in ("function", "custom"):
        raise invalid(f"{field}.{wire.type}", "required")
    raise invalid(f"{field}.type", f"only function and custom tools are served, got {wire.type!r}")


def _tool_choice(wire: str | Choice | None, tools: list[Tool]) -> tuple[ToolChoice | None, list[Tool]]:
    """The choice, and the tools that it leaves."""
    match wire:
        case None | "none" | "auto" | "required":
            return wire, tools
        case Choice(type="allowed_tools", allowed_tools=allowed) if allowed is not None:
            names = {_name(tool, tools) for tool in allowed.tools}
            return allowed.mode, [tool for tool in tools if tool.function.name in names]
        case Choice():
            return ForcedTool(NamedFunction(_name(wire, tools))), tools
    raise invalid("tool_choice", f"expected none, auto, required or an object, got {wire!r}")


def _name(wire: ToolName, tools: list[Tool]) -> str:
    """The name of a declared tool. Raises RefusalError for any other."""
    named = wire.function if wire.type == "function" else wire.custom if wire.type == "custom" else None
    known = [tool.function.name for tool in tools]
    if named is None or named.name not in known:
        got = wire.type if named is None else named.name
        raise invalid("tool_choice", f"expected one of the tools {', '.join(known)}, got {got!r}")
    return named.name


def _response_format(raw: msgspec.Raw) -> msgspec.Raw:
    """The format; absent for plain text, which needs no grammar."""
    if not is_present(raw):
        return NOT_GIVEN
    try:
        kind = _formats.decode(raw).type
    except msgspec.ValidationError:
        kind = None
    if kind not in ("text", "json_object", "json_schema"):
        raise invalid("response_format.type", f"expected text, json_object or json_schema, got {kind!r}")
    return NOT_GIVEN if kind == "text" else raw


# --- answer to body and to stream events


def _text(message: Message) -> str | None:
    assert not isinstance(message.content, list), "engines answer in text"
    return message.content


def _customs(request: ChatRequest) -> frozenset[str]:
    """Names of the request's custom tools."""
    return request.wire if isinstance(request.wire, frozenset) else frozenset()


def _choice(index: int, answer: Answer, customs: frozenset[str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _text(answer.message), "refusal": None}
    if answer.message.reasoning:
        message["reasoning_content"] = answer.message.reasoning
    if answer.message.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "custom", "custom": {"name": call.function.name, "input": _input(call)}}
            if call.function.name in customs
            else call
            for call in answer.message.tool_calls
        ]
    return {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}


def _input(call: ToolCall) -> str:
    text = freeform.parsed_input(call.function.arguments)
    return call.function.arguments if text is None else text


def _usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Token counts: the prompt's once, the sampled ones of all choices."""
    prompt = answers[0].usage.prompt
    sampled = sum(answer.usage.sampled for answer in answers)
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }
    if answers[0].usage.cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": answers[0].usage.cached}
    if answers[0].usage.reasoning is not None:
        reasoning = sum(answer.usage.reasoning or 0 for answer in answers)
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return counts


Delta = tuple[dict[str, Any], FinishReason | None]


def _deltas(answer: Answer, customs: frozenset[str]) -> Iterator[Delta]:
    message = answer.message
    text = _text(message)
    opening = None if text is None else ""
    yield {"role": "assistant", "content": opening, "refusal": None}, None
    if message.reasoning:
        yield {"reasoning_content": message.reasoning}, None
    if text:
        yield {"content": text}, None
    for at, call in enumerate(message.tool_calls):
        is_custom = call.function.name in customs
        kind, field = ("custom", "input") if is_custom else ("function", "arguments")
        written = _input(call) if is_custom else call.function.arguments
        yield (
            {"tool_calls": [{"index": at, "id": call.id, "type": kind, kind: {"name": call.function.name, field: ""}}]},
            None,
        )
        if written:
            yield {"tool_calls": [{"index": at, kind: {field: written}}]}, None
    yield {}, answer.finish_reason
