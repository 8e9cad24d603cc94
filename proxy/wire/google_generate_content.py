"""Requests of Google's generateContent, streamGenerateContent and countTokens, as clients write them.

Like Google's servers, this module accepts each name in camelCase and in snake_case, a single value in place of a list, numbers in quotes,
and null for missing. Unknown fields are skipped. Free values (a call's args, a function's response, schemas) stay as they came.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_origin

import msgspec

from proxy.dialects.codec import Int64, decoded, refusing_bad_json


class Blob(msgspec.Struct, rename="camel"):
    """`inlineData`."""

    mime_type: str | None = None
    data: str | None = None
    """Base64, standard (JavaScript) or URL-safe (Python)."""


class FileData(msgspec.Struct, rename="camel"):
    """`fileData`."""

    mime_type: str | None = None
    file_uri: str | None = None


class FunctionCall(msgspec.Struct, rename="camel"):
    """A call as a harness repeats it, with or without its id."""

    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None


class FunctionResponse(msgspec.Struct, rename="camel"):
    """A function's answer."""

    id: str | None = None
    name: str | None = None
    response: Any = None
    """An object by Google's schema; text is accepted too."""
    parts: list[Part] | None = None
    """Files of the answer."""


class ExecutableCode(msgspec.Struct, rename="camel"):
    """Code that Google ran for its model."""

    code: str = ""
    language: str | None = None


class CodeExecutionResult(msgspec.Struct, rename="camel"):
    """The output of that code."""

    output: str = ""


class Part(msgspec.Struct, rename="camel"):
    """A part of any kind; a part without known fields is skipped."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    executable_code: ExecutableCode | None = None
    code_execution_result: CodeExecutionResult | None = None


class Content(msgspec.Struct, rename="camel"):
    """One turn, or a piece of one."""

    role: str | None = None
    parts: list[Part | str] | None = None


class FunctionDeclaration(msgspec.Struct, rename="camel"):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: Any = None
    """Google's Schema, types in upper case."""
    parameters_json_schema: Any = None


class Tool(msgspec.Struct, rename="camel"):
    """Functions, which harnesses run, or tools that Google would run; computer use, which harnesses run, is skipped."""

    function_declarations: list[FunctionDeclaration] | None = None
    google_search: Any = None
    google_search_retrieval: Any = None
    enterprise_web_search: Any = None
    exa_ai_search: Any = None
    parallel_ai_search: Any = None
    url_context: Any = None
    google_maps: Any = None
    file_search: Any = None
    retrieval: Any = None
    code_execution: Any = None
    mcp_servers: Any = None

    @property
    def hosted(self) -> list[str]:
        """Names of the tools that Google would run."""
        _, *hosted = msgspec.structs.fields(self)
        return [field.encode_name for field in hosted if getattr(self, field.name) is not None]


class FunctionCallingConfig(msgspec.Struct, rename="camel"):
    """Which functions the model may or must call."""

    mode: str | None = None
    allowed_function_names: list[str] | None = None


class ToolConfig(msgspec.Struct, rename="camel"):
    """`toolConfig`."""

    function_calling_config: FunctionCallingConfig | None = None


class ThinkingConfig(msgspec.Struct, rename="camel"):
    """`thinkingConfig`."""

    include_thoughts: bool | None = None
    thinking_budget: Int64 | None = None
    """Tokens; 0: none, -1: the model decides."""
    thinking_level: str | None = None


class TextFormat(msgspec.Struct, rename="camel"):
    """The text of `responseFormat`."""

    mime_type: str | None = None
    json_schema: Any = None


class ResponseFormat(msgspec.Struct, rename="camel"):
    """One of `responseFormat`, the newer spelling of `responseMimeType` and `responseJsonSchema`."""

    text: TextFormat | None = None


class GenerationConfig(msgspec.Struct, rename="camel"):
    """`generationConfig`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    candidate_count: Int64 | None = None
    max_output_tokens: Int64 | None = None
    stop_sequences: list[str] | None = None
    seed: Int64 | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_mime_type: str | None = None
    response_schema: Any = None
    response_json_schema: Any = None
    response_format: list[ResponseFormat] | None = None
    response_modalities: list[str] | None = None
    thinking_config: ThinkingConfig | None = None


class GenerateContentRequest(msgspec.Struct, rename="camel"):
    """A request's body."""

    contents: list[Content | str] | None = None
    system_instruction: Content | str | None = None
    tools: list[Tool] | None = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig | None = None
    cached_content: str | None = None


class CountTokensRequest(GenerateContentRequest, rename="camel"):
    """A countTokens body: a request, or one inside."""

    generate_content_request: GenerateContentRequest | None = None


STRUCTS = (
    Blob,
    FileData,
    FunctionCall,
    FunctionResponse,
    ExecutableCode,
    CodeExecutionResult,
    Part,
    Content,
    FunctionDeclaration,
    Tool,
    FunctionCallingConfig,
    ToolConfig,
    ThinkingConfig,
    TextFormat,
    ResponseFormat,
    GenerationConfig,
    CountTokensRequest,
)
FIELDS = [field for struct in STRUCTS for field in msgspec.structs.fields(struct)]
CAMEL = {field.name: field.encode_name for field in FIELDS}
FREE = frozenset(field.encode_name for field in FIELDS if field.type is Any) | {"args"}
"""Fields in whose values no name is changed."""
LISTS = frozenset(f.encode_name for f in FIELDS if any(get_origin(kind) is list for kind in get_args(f.type)))
Request = TypeVar("Request", bound=GenerateContentRequest)
_anything = msgspec.json.Decoder()


def read(body: bytes, kind: type[Request]) -> Request:
    """A body as one of the two requests. Raises RefusalError with the path of the field at fault."""
    with refusing_bad_json():
        return msgspec.convert(_spelled(decoded(body, _anything)), kind, strict=False)


def _spelled(value: Any) -> Any:
    """The value with known names in camelCase, and lists where the schema has lists."""
    if isinstance(value, list):
        return [_spelled(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    spelled = {}
    for key, inner in value.items():
        name = CAMEL.get(key, key)
        if name not in FREE and isinstance(inner, dict | list):
            inner = _spelled(inner)
        is_single = name in LISTS and inner is not None and not isinstance(inner, list)
        spelled[name] = [inner] if is_single else inner
    return spelled
