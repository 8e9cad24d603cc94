"""Google's generateContent, streamGenerateContent and countTokens, by the Gemini API and Vertex AI references (v1beta) of November 2026.

Honoured: contents, systemInstruction, functionDeclarations with either kind of schema, functionCallingConfig, the sampling fields of
generationConfig, stopSequences, candidateCount, responseMimeType with responseSchema or responseJsonSchema, thinkingConfig.

Rules of reading:
- Contents become messages by the rules of `google_contents`.
- Functions outside allowedFunctionNames aren't shown, but for a single one under ANY, which is forced. VALIDATED is AUTO.
- Tools that Google runs (search, maps, URL context, code execution, retrieval, MCP servers) aren't shown; a call with no others is a side
  call (`proxy/call_kinds.py`).
- thinkingBudget 0 is no reasoning, up to 1024 low, up to 8192 medium, above high, as Google's own OpenAI gateway has it; -1 says nothing.

Ignored: safetySettings, labels, store, serviceTier, model armor, routing and model selection; logprobs, which are the log's and never
leave; media resolution, speech, image, transcription and translation settings; calls of Google's own tools in contents; computer use; a
function's response schema and behaviour; video and part metadata; and every field that we don't know. Refused: cachedContent, which would
be a part of the prompt that nobody here has seen; answers that aren't text; text/x.enum.

Rules of answering: thought parts only with includeThoughts, the signature always, on the first call or else on the text. A call whose
arguments are no JSON object ends the candidate as at Google: no content, MALFORMED_FUNCTION_CALL, upon which Gemini CLI asks again;
where max_tokens cut the call off, it alone is left out, and the candidate ends in MAX_TOKENS.
Without alt=sse a stream is a JSON array and comes whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from proxy import chat
from proxy.chat import (
    NOT_GIVEN,
    Answer,
    ChatRequest,
    ForcedTool,
    NamedFunction,
    ToolCall,
)
from proxy.dialects.base import Route, Serves, Wire
from proxy.dialects.google_contents import invalid, messages_of, sealed
from proxy.dialects.reading import event
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
"""Before `/models/…`: AI Studio, Vertex with a key, Vertex with a project, and base URLs that say no version."""
MAX_CANDIDATES = 8
LOW_BUDGET, MEDIUM_BUDGET = 1024, 8192
LEVELS = {"MINIMAL": "low", "LOW": "low", "MEDIUM": "medium", "HIGH": "high", "XHIGH": "high"}
LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Google's own Python client before version 3 breaks lines at these."""
SPACE = " \t\r\n"
_encode = msgspec.json.Encoder().encode
_arguments = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class RefusalBody:
    """What the answer needs of the request."""

    thoughts: bool
    """Thought parts are wanted."""
    is_array: bool
    """A stream without alt=sse."""


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
    """Google's Python client takes a comment for JSON and dies of it; an empty line all clients pass over."""
    request_type = GenerateContentRequest

    def parse(self, wire: Wire) -> ChatRequest:
        """The canonical request. Raises RefusalError, naming the field."""
        method, model = wire.path.get("method", ""), _model(wire)
        try:
            if method == "countTokens":
                counted = read(wire.body, CountTokensRequest)
                return _canonical(counted.generate_content_request or counted, model)
            body = read(wire.body, GenerateContentRequest)
            request = _canonical(body, model)
        except RecursionError:
            raise RefusalError(Refusal.INVALID, "the request's body is nested too deeply") from None
        config = body.generation_config
        thoughts = config is not None and config.thinking_config is not None and config.thinking_config.include_thoughts
        streams = method == "streamGenerateContent"
        is_sse = wire.query.get("alt", wire.query.get("$alt")) == "sse"
        return msgspec.structs.replace(
            request,
            stream=streams and is_sse,
            stream_usage=True,
            wire=RefusalBody(thoughts=bool(thoughts), is_array=streams and not is_sse),
        )

    def body(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """`GenerateContentResponse`, or an array of them for a stream without alt=sse."""
        told = _told(request)
        if told.is_array:
            return _encode(list(_chunks(_head(call_id, created, request, answers), request, answers)))
        return _encode(
            {
                "candidates": [
                    _candidate(index, answer, [part for piece in _pieces(answer, told) for part in piece])
                    for index, answer in enumerate(answers)
                ],
                "usageMetadata": _usage(answers),
                **_head(call_id, created, request, answers),
            }
        )

    def stream(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """Of each candidate thought, text, calls, with the last of these its finish reason; usage with the last of all."""
        events = b"".join(
            event(chunk) for chunk in _chunks(_head(call_id, created, request, answers), request, answers)
        )
        return events.decode().translate(LINE_ENDS).encode()

    def count(self, tokens: int) -> bytes:
        """`CountTokensResponse`."""
        return _encode({"totalTokens": tokens})

    def models(self, served: Sequence[str], only: str | None) -> bytes:
        """`ListModelsResponse`, or one `Model`."""
        told = [
            {
                "name": f"models/{model}",
                "version": "1",
                "displayName": model,
                "supportedGenerationMethods": ["generateContent", "countTokens"],
            }
            for model in (served if only is None else [only])
        ]
        return _encode({"models": told} if only is None else told[0])

    def error(self, refused: RefusalError) -> bytes:
        """`{error: {code, message, status, details}}`, as google.rpc.Status has it."""
        return _encode({"error": _error(refused)})

    def error_event(self, refused: RefusalError) -> bytes:
        """The same bare: in a stream's `data:` Google's JavaScript client doesn't look for it."""
        return self.error(refused) + b"\n\n"


# --- request to canonical


def _model(wire: Wire) -> str | None:
    """Google's client takes `Qwen/Qwen3-8B` for a publisher and its model."""
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
        stop=config.stop_sequences or [],
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
    schema = next(
        (
            schema
            for schema in (newer and newer.json_schema, config.response_json_schema, config.response_schema)
            if schema is not None
        ),
        None,
    )
    if config.response_modalities and "TEXT" not in (one.upper() for one in config.response_modalities):
        raise invalid("generationConfig.responseModalities", "expected TEXT among them: this model says nothing else")
    if kind not in ("", "text/plain", "application/json"):
        raise invalid("generationConfig.responseMimeType", f"expected text/plain or application/json, got {kind!r}")
    if schema is not None:
        held = {"name": "response", "schema": json_schema(schema), "strict": True}
        return msgspec.Raw(_encode({"type": "json_schema", "json_schema": held}))
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


# --- answer to wire


def _told(request: ChatRequest) -> RefusalBody:
    return request.wire if isinstance(request.wire, RefusalBody) else RefusalBody(thoughts=False, is_array=False)


def _head(call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "modelVersion": request.model or answers[0].model,
        "createTime": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "responseId": call_id,
    }


def _pieces(answer: Answer, told: RefusalBody) -> list[list[dict[str, Any]]]:
    """An answer's parts: thought, text, calls, each a piece of its own in a stream; at least one, unless it is malformed."""
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
        if told.thoughts:
            thought = [{"text": message.reasoning, "thought": True}]
        text = text if text or calls else [{"text": ""}]
        (calls or text)[0]["thoughtSignature"] = sealed(message.reasoning)
    return [piece for piece in (thought, text, calls) if piece] or [[{"text": ""}]]


def _function_call(call: ToolCall) -> dict[str, Any]:
    """Arguments leave as they were sampled, which is JSON (`_has_object`)."""
    return {
        "id": call.id,
        "name": call.function.name,
        "args": msgspec.Raw(call.function.arguments.strip(SPACE).encode() or b"{}"),
    }


def _malformed(answer: Answer) -> ToolCall | None:
    """The first call that isn't one, unless it was cut off."""
    if answer.finish_reason == "length":
        return None
    return next((call for call in answer.message.tool_calls if not _has_object(call)), None)


def _has_object(call: ToolCall) -> bool:
    """Whether its arguments are a JSON object; none at all are an empty one."""
    try:
        _arguments.decode(call.function.arguments.strip(SPACE) or "{}")
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _candidate(index: int, answer: Answer, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A finished one."""
    malformed = _malformed(answer)
    if malformed is not None:
        call = f"{malformed.function.name}({malformed.function.arguments})"
        return {
            "content": {},
            "finishReason": "MALFORMED_FUNCTION_CALL",
            "finishMessage": f"Malformed function call: {call}",
            "index": index,
        }
    return _unfinished(index, parts) | {"finishReason": FINISH_REASONS[answer.finish_reason]}


def _unfinished(index: int, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": {"parts": parts, "role": "model"}, "index": index}


def _chunks(head: dict[str, Any], request: ChatRequest, answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
    for index, answer in enumerate(answers):
        *before, last = _pieces(answer, _told(request)) or [[]]
        for piece in before:
            yield {"candidates": [_unfinished(index, piece)], **head}
        usage = {"usageMetadata": _usage(answers)} if index == len(answers) - 1 else {}
        yield {"candidates": [_candidate(index, answer, last)], **usage, **head}


def _usage(answers: Sequence[Answer]) -> dict[str, int]:
    """The prompt's tokens once, the sampled ones of all candidates; thoughts are told beside the rest."""
    usage = answers[0].usage
    sampled = sum(answer.usage.sampled for answer in answers)
    thoughts = sum(answer.usage.reasoning or 0 for answer in answers)
    told = {
        "promptTokenCount": usage.prompt,
        "candidatesTokenCount": sampled - thoughts,
        "totalTokenCount": usage.prompt + sampled,
    }
    if usage.cached is not None:
        told["cachedContentTokenCount"] = usage.cached
    if usage.reasoning is not None:
        told["thoughtsTokenCount"] = thoughts
    return told


def _error(refused: RefusalError) -> dict[str, Any]:
    told: dict[str, Any] = {
        "code": refused.refusal.status,
        "message": refused.message,
        "status": STATUSES[refused.refusal],
    }
    details: list[dict[str, Any]] = []
    if refused.refusal is Refusal.CONTEXT_LENGTH:
        told["message"] = _overflow(refused.context)
    elif refused.field is not None:
        violation = {"field": refused.field, "description": refused.message}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
    if refused.retry_after_s is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{refused.retry_after_s}s"})
    return told | ({"details": details} if details else {})


def _overflow(context: tuple[int, int] | None) -> str:
    """In Google's words, which opencode and pi look for."""
    if context is None:
        return "The input token count exceeds the maximum number of tokens allowed."
    return f"The input token count ({context[0]}) exceeds the maximum number of tokens allowed ({context[1]})."
