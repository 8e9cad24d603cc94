"""Google's generateContent, streamGenerateContent and countTokens, by the Gemini API and Vertex AI references (v1beta) of November 2026.

Honoured: contents, systemInstruction, functionDeclarations with either kind of schema, functionCallingConfig, the sampling fields of
generationConfig, stopSequences, candidateCount, responseMimeType with responseSchema or responseJsonSchema, thinkingConfig.

Rules for requests:
- Contents become messages by the rules in `google_contents.py`.
- Functions outside allowedFunctionNames aren't shown; a single allowed one under ANY is forced instead. VALIDATED is AUTO.
- Tools that Google runs (search, maps, URL context, code execution, retrieval, MCP servers) aren't shown. A request with no other tools is
  a side call (`proxy/call_kinds.py`).
- thinkingBudget 0 is no reasoning, up to 1024 low, up to 8192 medium, above high, as in Google's own OpenAI gateway; -1 has no effect.

Ignored: safetySettings, labels, store, serviceTier, model armor, routing and model selection; logprobs (the log keeps them; they never
leave); media resolution, speech, image, transcription and translation settings; calls of Google's own tools in contents; computer use; a
function's response schema and behaviour; video and part metadata; and all unknown fields.
Refused: cachedContent, which would be a part of the prompt that is unknown here; answers that aren't text; text/x.enum.

Rules for answers: thought parts leave only with includeThoughts. The signature always leaves, on the first call or otherwise on the text. A
call whose arguments are no JSON object ends the candidate as at Google, with no content and MALFORMED_FUNCTION_CALL, upon which Gemini CLI
asks again. If max_tokens cut the call off, only that call is dropped, and the candidate ends with MAX_TOKENS.
Without alt=sse a stream is one JSON array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from proxy import chat
from proxy.chat import NOT_GIVEN, Answer, ChatRequest, ForcedTool, NamedFunction, ToolCall
from proxy.dialects.base import Route, Serves, Wire
from proxy.dialects.codec import event, invalid, is_object, refusing_bad_json, stops_of
from proxy.dialects.google_contents import messages_of, sealed
from proxy.errors import Refusal, RefusalError
from proxy.wire.google_generate_content import (
    CountTokensRequest,
    FunctionCallingConfig,
    FunctionDeclaration,
    GenerateContentRequest,
    GenerationConfig,
    ThinkingConfig,
    read,
)
from proxy.wire.google_schema import json_schema
from topics.types.completion import Sampling

STATUSES: dict[Refusal, str] = {
    Refusal.INVALID: "INVALID_ARGUMENT",
    Refusal.CONTEXT_LENGTH: "INVALID_ARGUMENT",
    Refusal.UNAUTHENTICATED: "UNAUTHENTICATED",
    Refusal.SPENT: "PERMISSION_DENIED",
    Refusal.NOT_FOUND: "NOT_FOUND",
    Refusal.SLOW: "DEADLINE_EXCEEDED",
    Refusal.CLOSED: "ABORTED",
    Refusal.TOO_LARGE: "INVALID_ARGUMENT",
    Refusal.UPGRADE: "FAILED_PRECONDITION",
    Refusal.OVERLOADED: "RESOURCE_EXHAUSTED",
    Refusal.BAD_ENGINE: "INTERNAL",
    Refusal.UNAVAILABLE: "UNAVAILABLE",
}
"""google.rpc.Code by refusal."""
FINISH_REASONS: dict[chat.FinishReason, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
}
PLACES = (
    "/{version:v1[a-z0-9]*}",
    "/{version:v1[a-z0-9]*}/publishers/{publisher}",
    "/{version:v1[a-z0-9]*}/projects/{project}/locations/{location}/publishers/{publisher}",
    "",
)
"""Path prefixes of `/models/…`: AI Studio, Vertex with a key, Vertex with a project, and base URLs without a version."""
MAX_CANDIDATES = 8
"""Limit of candidateCount, as at Google."""
LOW_BUDGET, MEDIUM_BUDGET = 1024, 8192
"""The most tokens of a thinking budget for these efforts."""
LEVELS = {"MINIMAL": "low", "LOW": "low", "MEDIUM": "medium", "HIGH": "high", "XHIGH": "high"}
LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Characters at which Google's Python client before version 3 breaks lines, which would cut an event."""
SPACE = " \t\r\n"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class RequestContext:
    """The parts of a request that its answer needs."""

    shows_thoughts: bool = False
    is_array: bool = False
    """The request is for a stream without alt=sse."""


class GoogleGenerateContent:
    """The dialect `google_generate_content`."""

    name = "google_generate_content"
    routes: tuple[Route, ...] = (
        *(
            Route("POST", f"{place}/models/{{model:.+}}:{{method:{methods}}}", serves)
            for place in PLACES
            for methods, serves in (
                ("generateContent|streamGenerateContent", Serves.CALL),
                ("countTokens", Serves.COUNT),
            )
        ),
        *(
            Route("GET", f"/{version}/models{only}", Serves.MODELS)
            for version in ("v1beta", "v1alpha", "v1")
            for only in ("", "/{model:.+}")
        ),
    )
    signs: frozenset[str] = frozenset({"x-goog-api-key", "x-goog-api-client"})
    id_prefix = "gen-"
    keep_alive = b"\n\n"
    """Google's Python client crashes on a comment, which it reads as JSON; all clients skip an empty line."""
    request_type = GenerateContentRequest

    def parse(self, wire: Wire) -> ChatRequest:
        """The canonical request. Raises RefusalError, naming the field."""
        method, model = wire.path.get("method", ""), _model(wire)
        with refusing_bad_json():
            if method == "countTokens":
                counted = read(wire.body, CountTokensRequest)
                return _canonical(counted.generate_content_request or counted, model)
            body = read(wire.body, GenerateContentRequest)
            request = _canonical(body, model)
        config = body.generation_config
        thoughts = config is not None and config.thinking_config is not None and config.thinking_config.include_thoughts
        streams = method == "streamGenerateContent"
        is_sse = wire.query.get("alt", wire.query.get("$alt")) == "sse"
        return msgspec.structs.replace(
            request,
            stream=streams and is_sse,
            stream_usage=True,
            wire=RequestContext(shows_thoughts=bool(thoughts), is_array=streams and not is_sse),
        )

    def body(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """`GenerateContentResponse`, or an array of them for a stream without alt=sse."""
        context = _context(request)
        if context.is_array:
            return _encode(list(_chunks(_head(call_id, created, request, answers), request, answers)))
        candidates = [
            _candidate(index, answer, [part for piece in _pieces(answer, context) for part in piece])
            for index, answer in enumerate(answers)
        ]
        head = _head(call_id, created, request, answers)
        return _encode({"candidates": candidates, "usageMetadata": _usage(answers), **head})

    def stream(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """For each candidate thought, text and calls, the last with the finish reason; usage comes with the last chunk."""
        events = b"".join(
            event(chunk) for chunk in _chunks(_head(call_id, created, request, answers), request, answers)
        )
        return events.decode().translate(LINE_ENDS).encode()

    def count(self, tokens: int) -> bytes:
        """`CountTokensResponse`."""
        return _encode({"totalTokens": tokens})

    def models(self, served: Mapping[str, int | None], only: str | None) -> bytes:
        """`ListModelsResponse`, or one `Model`."""
        models = [
            {
                "name": f"models/{model}",
                "version": "1",
                "displayName": model,
                "supportedGenerationMethods": ["generateContent", "countTokens"],
            }
            | ({} if context is None else {"inputTokenLimit": context})
            for model, context in served.items()
        ]
        return _encode({"models": models} if only is None else models[0])

    def error(self, refused: RefusalError) -> bytes:
        """`{error: {code, message, status, details}}`, as google.rpc.Status has it."""
        return _encode({"error": _error(refused)})

    def error_event(self, refused: RefusalError) -> bytes:
        """The same object without `data:`: Google's JavaScript client finds no error in a stream's data."""
        return self.error(refused) + b"\n\n"


# --- request to canonical


def _model(wire: Wire) -> str | None:
    """The model's name; Google's client splits `Qwen/Qwen3-8B` into a publisher and its model."""
    publisher, model = wire.path.get("publisher", "google"), wire.path.get("model")
    return model if publisher == "google" else f"{publisher}/{model}"


def _canonical(wire: GenerateContentRequest, model: str | None) -> ChatRequest:
    if wire.cached_content:
        raise invalid("cachedContent", "nothing is cached here; send the contents themselves")
    config = wire.generation_config or GenerationConfig()
    messages = messages_of(wire)
    tools, choice = _tools(wire)
    return ChatRequest(
        model=model,
        messages=messages,
        tools=tools,
        hosted_tools=[name for tool in wire.tools or () for name in tool.hosted],
        tool_choice=choice,
        sampling=Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            presence_penalty=config.presence_penalty,
            frequency_penalty=config.frequency_penalty,
            seed=config.seed,
            max_tokens=config.max_output_tokens,
        ),
        stop=stops_of(config.stop_sequences, "generationConfig.stopSequences"),
        response_format=_response_format(config),
        reasoning_effort=_effort(config.thinking_config or ThinkingConfig()),
        choices=_choices(config),
    )


def _tools(wire: GenerateContentRequest) -> tuple[list[chat.Tool], chat.ToolChoice | None]:
    declared = [one for tool in wire.tools or () for one in tool.function_declarations or ()]
    config = (wire.tool_config and wire.tool_config.function_calling_config) or FunctionCallingConfig()
    field = "toolConfig.functionCallingConfig"
    allowed = config.allowed_function_names or []
    unknown = sorted(set(allowed) - {function.name for function in declared})
    if unknown:
        raise invalid(f"{field}.allowedFunctionNames", f"not among the functions that are declared: {unknown}")
    mode = (config.mode or "MODE_UNSPECIFIED").upper()
    if mode not in ("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"):
        raise invalid(f"{field}.mode", f"expected AUTO, ANY, NONE or VALIDATED, got {config.mode!r}")
    choice: chat.ToolChoice | None = None
    if mode == "ANY":
        choice = ForcedTool(NamedFunction(allowed[0])) if len(allowed) == 1 else "required"
    elif mode != "MODE_UNSPECIFIED":
        choice = "none" if mode == "NONE" else "auto"
    shown = declared
    if allowed and choice in ("auto", "required", None):
        shown = [function for function in declared if function.name in allowed]
    return [_tool(function) for function in shown], choice if declared else None


def _tool(wire: FunctionDeclaration) -> chat.Tool:
    schema = wire.parameters_json_schema if wire.parameters_json_schema is not None else wire.parameters
    parameters = NOT_GIVEN if schema is None else msgspec.Raw(_encode(json_schema(schema)))
    return chat.Tool(chat.Function(wire.name, wire.description, parameters))


def _response_format(config: GenerationConfig) -> msgspec.Raw:
    newer = next((one.text for one in config.response_format or () if one.text is not None), None)
    kind = (newer and newer.mime_type) or config.response_mime_type or ""
    schemas = (newer and newer.json_schema, config.response_json_schema, config.response_schema)
    schema = next((schema for schema in schemas if schema is not None), None)
    if config.response_modalities and "TEXT" not in (one.upper() for one in config.response_modalities):
        raise invalid("generationConfig.responseModalities", "expected TEXT among them: this model says nothing else")
    if kind not in ("", "text/plain", "application/json"):
        raise invalid("generationConfig.responseMimeType", f"expected text/plain or application/json, got {kind!r}")
    if schema is not None:
        form = {"name": "response", "schema": json_schema(schema), "strict": True}
        return msgspec.Raw(_encode({"type": "json_schema", "json_schema": form}))
    return msgspec.Raw(b'{"type":"json_object"}') if kind == "application/json" else NOT_GIVEN


def _effort(thinking: ThinkingConfig) -> str | None:
    if thinking.thinking_level is not None:
        return LEVELS.get(thinking.thinking_level.upper())
    budget = thinking.thinking_budget
    if budget is None or budget < 0:
        return None
    if budget == 0:
        return "none"
    return "low" if budget <= LOW_BUDGET else "medium" if budget <= MEDIUM_BUDGET else "high"


def _choices(config: GenerationConfig) -> int:
    wanted = config.candidate_count or 1
    if not 1 <= wanted <= MAX_CANDIDATES:
        raise invalid("generationConfig.candidateCount", f"expected 1 to {MAX_CANDIDATES}, got {wanted}")
    return wanted


# --- answer to body and to stream events


def _context(request: ChatRequest) -> RequestContext:
    return request.wire if isinstance(request.wire, RequestContext) else RequestContext()


def _head(call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "modelVersion": request.model or answers[0].model,
        "createTime": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "responseId": call_id,
    }


def _pieces(answer: Answer, context: RequestContext) -> list[list[dict[str, Any]]]:
    """The parts of an answer by chunk of its stream: thought, text, calls. At least one, unless a call is malformed."""
    message = answer.message
    assert not isinstance(message.content, list), "engines answer in text"
    if _malformed(answer) is not None:
        return []
    calls: list[dict[str, Any]] = [
        {"functionCall": _function_call(call)} for call in message.tool_calls if _has_object(call)
    ]
    text: list[dict[str, Any]] = [{"text": message.content}] if message.content else []
    thought: list[dict[str, Any]] = []
    if message.reasoning:
        if context.shows_thoughts:
            thought = [{"text": message.reasoning, "thought": True}]
        text = text if text or calls else [{"text": ""}]
        (calls or text)[0]["thoughtSignature"] = sealed(message.reasoning)
    return [piece for piece in (thought, text, calls) if piece] or [[{"text": ""}]]


def _function_call(call: ToolCall) -> dict[str, Any]:
    """A call with its arguments as they were sampled, which `_has_object` has found to be JSON."""
    return {
        "id": call.id,
        "name": call.function.name,
        "args": msgspec.Raw(call.function.arguments.strip(SPACE).encode() or b"{}"),
    }


def _malformed(answer: Answer) -> ToolCall | None:
    """The first call whose arguments are no JSON object, unless the answer was cut off."""
    if answer.finish_reason == "length":
        return None
    return next((call for call in answer.message.tool_calls if not _has_object(call)), None)


def _has_object(call: ToolCall) -> bool:
    """True if a call's arguments are a JSON object; no arguments are an empty object."""
    return is_object(call.function.arguments.strip(SPACE) or "{}")


def _candidate(index: int, answer: Answer, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A finished candidate."""
    malformed = _malformed(answer)
    if malformed is not None:
        why = f"Malformed function call: {malformed.function.name}({malformed.function.arguments})"
        return {"content": {}, "finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": why, "index": index}
    return _unfinished(index, parts) | {"finishReason": FINISH_REASONS[answer.finish_reason]}


def _unfinished(index: int, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": {"parts": parts, "role": "model"}, "index": index}


def _chunks(head: dict[str, Any], request: ChatRequest, answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
    for index, answer in enumerate(answers):
        *before, last = _pieces(answer, _context(request)) or [[]]
        for piece in before:
            yield {"candidates": [_unfinished(index, piece)], **head}
        usage = {"usageMetadata": _usage(answers)} if index == len(answers) - 1 else {}
        yield {"candidates": [_candidate(index, answer, last)], **usage, **head}


def _usage(answers: Sequence[Answer]) -> dict[str, int]:
    """Token counts: the prompt's once, the sampled ones of all candidates; thoughts are counted apart."""
    usage = answers[0].usage
    sampled = sum(answer.usage.sampled for answer in answers)
    thoughts = sum(answer.usage.reasoning or 0 for answer in answers)
    counts = {
        "promptTokenCount": usage.prompt,
        "candidatesTokenCount": sampled - thoughts,
        "totalTokenCount": usage.prompt + sampled,
    }
    if usage.cached is not None:
        counts["cachedContentTokenCount"] = usage.cached
    if usage.reasoning is not None:
        counts["thoughtsTokenCount"] = thoughts
    return counts


# --- errors


def _error(refused: RefusalError) -> dict[str, Any]:
    error: dict[str, Any] = {
        "code": refused.refusal.status,
        "message": refused.message,
        "status": STATUSES[refused.refusal],
    }
    details: list[dict[str, Any]] = []
    if refused.refusal is Refusal.CONTEXT_LENGTH:
        error["message"] = _overflow_message(refused.context)
    elif refused.field is not None:
        violation = {"field": refused.field, "description": refused.message}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
    if refused.retry_after_s is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{refused.retry_after_s}s"})
    return error | ({"details": details} if details else {})


def _overflow_message(context: tuple[int, int] | None) -> str:
    """Google's words for a prompt that is too long; opencode and pi compact at these."""
    if context is None:
        return "The input token count exceeds the maximum number of tokens allowed."
    return f"The input token count ({context[0]}) exceeds the maximum number of tokens allowed ({context[1]})."
