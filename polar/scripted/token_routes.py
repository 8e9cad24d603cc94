"""vLLM's routes for clients that send token ids: render, generate and derender, in the format of vLLM 0.32.

`render` converts a chat request into a request for `generate`, `generate` samples after given token ids, and `derender` parses sampled
tokens. A constraint on the answer is passed in `sampling_params.structured_outputs`, as in vLLM, in a format of this engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final
from uuid import uuid4

import msgspec
from msgspec import Meta

from polar.scripted.answer import AnswerParser, joined
from polar.scripted.conversation import Turn
from polar.scripted.request import ApiError, ChatRequest, Tool, ToolFunction, decoded
from polar.scripted.response import Generation
from polar.scripted.tokenizer import Tokenizer
from polar.scripted.weights import NamedSpan

DEMANDED: Final = "turn"
"""The key in `structured_outputs` of the turn that the answer must be."""

SETTINGS: Final = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "logit_bias",
)  # fmt: skip
"""Sampling settings, which have no effect here. As in vLLM, a rendering may leave out those that are neutral."""

_Positive = Annotated[int, Meta(ge=1)]


class SamplingParams(msgspec.Struct):
    """The parameters of vLLM's type that this engine uses."""

    max_tokens: _Positive | None = None
    stop: list[str] | None = None
    logprobs: int | None = None
    structured_outputs: dict[str, Any] | None = None
    temperature: float | None = None
    top_k: int | None = None
    routed_experts_prompt_start: int = 0


class GenerateRequest(msgspec.Struct):
    """A request to /inference/v1/generate."""

    token_ids: Annotated[list[int], Meta(min_length=1)]
    sampling_params: SamplingParams
    model: str | None = None
    cache_salt: str | None = None
    stream: bool = False
    return_token_ids: bool | None = None
    """Return the prompt's ids."""

    def as_chat(self, tools: Sequence[dict[str, Any]], session_id: str | None) -> ChatRequest:
        """A chat request with the same parameters and without a prompt."""
        names = [Tool(ToolFunction(tool["function"]["name"])) for tool in tools]
        params = self.sampling_params
        return ChatRequest(
            [],
            model=self.model,
            tools=names,
            stop=params.stop,
            max_tokens=params.max_tokens,
            logprobs=params.logprobs is not None,
            top_logprobs=params.logprobs,
            session_id=session_id,
            cache_salt=self.cache_salt,
            return_token_ids=self.return_token_ids,
        )

    @property
    def demanded(self) -> Turn | None:
        """The turn that the answer must be, if the request demands one."""
        turn = (self.sampling_params.structured_outputs or {}).get(DEMANDED)
        return None if turn is None else msgspec.convert(turn, Turn)


class Choice(msgspec.Struct):
    token_ids: Annotated[list[int], Meta(min_length=1)]
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    index: int = 0


class GenerateResponse(msgspec.Struct):
    """The parsed part of an answer of /inference/v1/generate."""

    choices: list[Choice]


class DerenderRequest(msgspec.Struct):
    """A request to /v1/chat/completions/derender."""

    generate_response: GenerateResponse
    chat_request: dict[str, Any] | None = None


def decode_generate(body: bytes) -> tuple[GenerateRequest, dict[str, Any]]:
    """A generate request and all of its fields. Raises ApiError 400."""
    request, fields = decoded(body, GenerateRequest)
    if request.stream:
        raise ApiError(400, "stream: the scripted engine generates whole answers", param="stream")
    return request, fields


def decode_derender(body: bytes) -> DerenderRequest:
    """A derender request. Raises ApiError 400."""
    request, _ = decoded(body, DerenderRequest)
    if request.chat_request is None:
        # vLLM's message if it has a tool or reasoning parser; this engine has both.
        raise ApiError(400, "chat_request is required when a tool or reasoning parser is configured")
    return request


def rendered(
    request: ChatRequest, fields: Mapping[str, Any], ids: list[int], limit: int, demanded: Turn | None
) -> dict[str, Any]:
    """A generate request for a rendered prompt and at most `limit` tokens, with the sampling settings among the request's `fields`."""
    params = {name: fields[name] for name in SETTINGS if fields.get(name) is not None} | {
        "n": 1,
        "max_tokens": limit,
        "stop": request.stops,
        "logprobs": request.top_alternatives,
        "structured_outputs": None if demanded is None else {DEMANDED: msgspec.to_builtins(demanded)},
    }
    return {
        "request_id": f"chatcmpl-{uuid4().hex}",
        "token_ids": ids,
        "token_offsets": None,
        "features": None,
        "sampling_params": params,
        "model": request.model,
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "stream": False,
        "cache_salt": request.cache_salt,
        "priority": 0,
    }


def generated(generation: Generation, weights: Sequence[NamedSpan], replayed: dict[str, Any]) -> dict[str, Any]:
    """The body of the answer to a generate request, with the `weights` that sampled it; `replayed`: fields of the choice."""
    pairs = zip(generation.token_ids, generation.logprobs, strict=True)
    content = [{"token_id": token_id, "logprob": logprob, "rank": 1, "top_logprobs": []} for token_id, logprob in pairs]
    choice = {
        "index": 0,
        "finish_reason": "length" if generation.finish_reason == "length" else "stop",
        "stop_reason": generation.stop_reason,
        "token_ids": generation.token_ids,
        "logprobs": None if generation.top_alternatives is None else {"content": content},
        "weight_versions": weights,
        **replayed,
    }
    prompt, sampled = len(generation.prompt_token_ids), len(generation.token_ids)
    usage = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
    cached = {"prompt_tokens_details": {"cached_tokens": generation.cached_tokens}}
    return {
        "request_id": generation.request_id,
        "model": generation.model,
        "usage": usage | cached,
        "prompt_token_ids": generation.prompt_token_ids if generation.returns_token_ids else None,
        "choices": [choice],
    }


def derendered(request: DerenderRequest, parser: AnswerParser, tokenizer: Tokenizer, model: str) -> dict[str, Any]:
    """The chat completion of a generate answer. As in vLLM, a sampled end of turn and a stop string are part of the text."""
    choices = []
    for choice in request.generate_response.choices:
        whole = joined(parser.deltas(choice.token_ids))
        end = tokenizer.special_ids["<|im_end|>"]
        text = whole.text + ("<|im_end|>" if choice.token_ids[-1] == end else "")
        message = {
            "role": "assistant",
            "content": text or None,
            "reasoning": whole.reasoning or None,
            "tool_calls": [
                {"id": uuid4().hex[:16], "type": "function", "function": asdict(call)} for _, call in whole.calls
            ],
        }
        choices.append({"index": choice.index, "message": message, "finish_reason": choice.finish_reason})
    return {"object": "chat.completion", "model": model, "choices": choices}
