"""Decodes and validates requests to the scripted engine as vLLM does, and defines its error format.

As in vLLM, unknown fields are accepted. Sampling parameters are recorded and have no effect.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from polar.scripted.conversation import Call, Turn

MAX_TOP_LOGPROBS: Final = 20

_Kind = TypeVar("_Kind")
_Positive = Annotated[int, Meta(ge=1)]


class ApiError(Exception):
    """An error answer: a status and a body in vLLM's format."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.headers = headers or {}

    def body(self) -> bytes:
        kinds = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}
        kind = kinds.get(self.status, "InternalServerError" if self.status >= 500 else "BadRequestError")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


class ImageUrl(msgspec.Struct):
    url: str


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    image_url: ImageUrl | None = None


class Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct):
    function: Function


class Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The older name of `reasoning`."""


class ToolFunction(msgspec.Struct):
    """A tool's function; the rest of it is only rendered."""

    name: str


class Tool(msgspec.Struct):
    """An offered tool; it is rendered as received."""

    function: ToolFunction


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatRequest(msgspec.Struct):
    """The fields of a chat completion request that this engine uses, with vLLM's defaults."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    model: str | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    return_token_ids: bool | None = None
    request_id: str | None = None
    session_id: str | None = None
    user: str | None = None
    cache_salt: str | None = None

    @property
    def offered_tools(self) -> frozenset[str]:
        if self.tool_choice == "none":
            return frozenset()
        return frozenset(tool.function.name for tool in self.tools or [])

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def token_limit(self) -> int | None:
        """Maximum number of tokens to sample; None: as many as fit."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def top_alternatives(self) -> int | None:
        """Number of alternatives per token. None: no logprobs, which is also vLLM's reading of `logprobs: true` without
        `top_logprobs`."""
        return self.top_logprobs if self.logprobs else None

    @property
    def sample(self) -> str | None:
        return self.session_id or self.user or self.cache_salt


class TokenizeRequest(msgspec.Struct):
    """A request to /tokenize: a chat, or a text."""

    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool = True


class DetokenizeRequest(msgspec.Struct):
    """A request to /detokenize."""

    tokens: list[int]


def decode_chat(body: bytes) -> tuple[ChatRequest, dict[str, Any]]:
    """A chat request and all of its fields. Raises ApiError 400 that names the field."""
    request, fields = decoded(body, ChatRequest)
    if request.n is not None and request.n != 1:
        raise ApiError(400, f"n: the scripted engine answers with one choice, not {request.n}", param="n")
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs: needs `logprobs: true`", param="top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options: needs `stream: true`", param="stream_options")
    if "" in request.stops:
        raise ApiError(400, "stop: an empty string ends every answer", param="stop")
    return request, fields


def decode_tokenize(body: bytes) -> tuple[TokenizeRequest, dict[str, Any]]:
    """A tokenize request and all of its fields. Raises ApiError 400."""
    request, fields = decoded(body, TokenizeRequest)
    if (request.prompt is None) == (request.messages is None):
        raise ApiError(400, "either `prompt` or `messages` is needed, and not both", param="prompt")
    return request, fields


class NamedWeights(msgspec.Struct):
    """A request to /update_weight_version."""

    new_version: str


def decoded(body: bytes, kind: type[_Kind]) -> tuple[_Kind, dict[str, Any]]:
    """A body as a type, and all of its fields. Raises ApiError 400 that names the field."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        return msgspec.convert(fields, kind), fields
    except msgspec.ValidationError as error:
        raise ApiError(400, str(error), param=str(error).rpartition("$.")[2].rstrip("`") or None) from error
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the body isn't JSON: {error}") from error


def to_turns(messages: Sequence[Message]) -> list[Turn]:
    """The conversation of the messages. Raises ApiError 400 for a part that is neither text nor image."""
    return [_to_turn(position, message) for position, message in enumerate(messages)]


def _to_turn(position: int, message: Message) -> Turn:
    if isinstance(message.content, str):
        text = message.content
    else:
        parts = enumerate(message.content or [])
        text = "\n".join(_text_of(part, f"messages[{position}].content[{number}]") for number, part in parts)
    calls = tuple(Call(call.function.name, call.function.arguments) for call in message.tool_calls or [])
    return Turn(message.role, text, message.reasoning or message.reasoning_content or "", calls)


def _text_of(part: ContentPart, field: str) -> str:
    """A part's text in the prompt. An image becomes a text that is unique to it."""
    if part.type == "text" and part.text is not None:
        return part.text
    if part.type == "image_url" and part.image_url is not None:
        return f"[image {blake2b(part.image_url.url.encode(), digest_size=8).hexdigest()}]"
    raise ApiError(
        400, f"a part of type {part.type!r}: only text and image_url are served, with their values", param=field
    )
