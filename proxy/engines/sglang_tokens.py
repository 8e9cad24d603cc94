"""SGLang asked by tokens, through its chat completions: `input_ids` stand for the prompt, and it parses what it samples itself.

It has no route that renders alone: a prompt is read off an answer of one token (`return_prompt_token_ids`), which is thrown away and leaves
the prompt in the cache. A call that continues no answer costs one request, one that does two, three where the template drifts. Sampled ids
and their logprobs are in `meta_info` (`return_meta_info`), and so are the weights: by token, or those that it has once the answer is whole.
Fields as of SGLang 0.5.13.

A prompt with images is the server's own, and another branch: what stands for them among its ids is its word.

Not yet run against a live server: written and tested by the shapes that SGLang's sources and their users tell.
Codes of EngineError: those of `http` and `vllm_chat`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.chat import Answer, ChatRequest, Usage
from proxy.engines.continuing import Continuing, Prompt
from proxy.engines.http import UNREADABLE
from proxy.engines.versions import NamedSpan, Versions, versions
from proxy.engines.vllm_chat import FINISHED, VllmChat, WireMessage, fields_of, fitting, ids_of, logprobs_of, message_of
from proxy.errors import EngineError
from topics.types.tokens import Ids, unpack_ids

CHAT = "/v1/chat/completions"
OF_VLLM = ("return_token_ids", "top_logprobs", "session_id", "cache_salt")
"""Fields that SGLang lacks, or has under another name."""


class _Meta(msgspec.Struct):
    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None
    weight_versions: list[NamedSpan] | None = None
    weight_version: str | None = None
    cached_tokens: int | None = None


class _Choice(msgspec.Struct):
    message: WireMessage
    finish_reason: str | None = None
    matched_stop: str | int | None = None
    prompt_token_ids: list[int] | None = None
    meta_info: _Meta | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]
    model: str = ""


_bodies = msgspec.json.Decoder(_Body)
_encode = msgspec.json.Encoder().encode


class SglangTokens(VllmChat):
    """The engine `sglang_tokens`."""

    owns_prompts = True

    def __init__(self, base_url: str, model: str, **options: Any) -> None:
        """As `VllmChat`."""
        super().__init__(base_url, model, **options)
        self._continuing = Continuing(self._render)

    async def _answer(self, request: ChatRequest, session_id: str) -> Answer:  # noqa: ARG002 - its chat has no place for it
        """One completion of one to three requests. Raises EngineError."""
        prompt = None
        if request.continued is not None and not request.has_images:
            prompt = await self._continuing.prompt(request, await self._render(request))
        body = await fitting(request, lambda asked: self._http.post(CHAT, to_wire(asked, self._model, prompt)))
        return from_wire(body, self._model, self._logprobs_mode, prompt)

    async def _render(self, request: ChatRequest) -> Ids:
        bare = msgspec.structs.replace(request.sampling, max_tokens=1, temperature=0.0)
        # What an answer is held to doesn't show in its prompt, and compiling a grammar takes time.
        asked = msgspec.structs.replace(request, sampling=bare, stop=[], response_format=msgspec.Raw())
        body = _read(await self._http.post(CHAT, to_wire(asked, self._model, None)))
        return unpack_ids(_prompt_ids(body))


def to_wire(request: ChatRequest, model: str, prompt: Prompt | None) -> bytes:
    """The request as SGLang takes it; `prompt` stands for its messages, which say what may be called and where to stop all the same."""
    fields = {name: value for name, value in fields_of(request, model, "").items() if name not in OF_VLLM}
    fields |= {"return_meta_info": True, "return_prompt_token_ids": True}
    if prompt is not None:
        fields["input_ids"] = prompt.ids.tolist()
    if request.cache_salt is not None:
        fields["extra_key"] = request.cache_salt
    return _encode(fields)


def from_wire(body: bytes, model: str, logprobs_mode: str, prompt: Prompt | None) -> Answer:
    """The answer, checked. Raises EngineError with the reason."""
    told = _read(body)
    choice = told.choices[0]
    if choice.finish_reason not in FINISHED:
        raise EngineError("unfinished", f"finish_reason is {choice.finish_reason!r}", retryable=True)
    meta = choice.meta_info or _Meta()
    if not meta.output_token_logprobs:
        raise EngineError("no_token_ids", "the answer has no meta_info.output_token_logprobs")
    sampled = ids_of([token_id for _, token_id, _ in meta.output_token_logprobs], "output_token_logprobs")
    prompt_ids = _prompt_ids(told) if prompt is None else prompt.ids.tobytes()
    count = len(meta.output_token_logprobs)
    return Answer(
        message=message_of(choice.message),
        finish_reason=choice.finish_reason,  # type: ignore[arg-type] # it is one of FINISHED
        usage=Usage(len(prompt_ids) // 4, count, meta.cached_tokens),
        prompt_ids=prompt_ids,
        sampled_ids=sampled,
        logprobs=logprobs_of([logprob for logprob, _, _ in meta.output_token_logprobs]),
        model=told.model or model,
        logprobs_mode=logprobs_mode,
        # A number is a token that ends turns, of the model's own.
        stop_sequence=choice.matched_stop if isinstance(choice.matched_stop, str) else None,
        realigned=0 if prompt is None else prompt.realigned,
        **_versions(meta, count)._asdict(),
    )


def _versions(meta: _Meta, sampled: int) -> Versions:
    """By token where they are told; else one name for all, which the server writes when it hands the answer on."""
    if meta.weight_versions or meta.weight_version is None:
        return versions(meta.weight_versions, sampled)
    told = versions([NamedSpan(meta.weight_version, 0, sampled)], sampled)
    return told if told.policy_version is None else told._replace(policy_doubt="late")


def _prompt_ids(told: _Body) -> bytes:
    ids = told.choices[0].prompt_token_ids
    if not ids:
        raise EngineError("no_token_ids", "the answer has no prompt_token_ids")
    return ids_of(ids, "prompt_token_ids")


def _read(body: bytes) -> _Body:
    try:
        told = _bodies.decode(body)
    except UNREADABLE as error:
        raise EngineError("malformed", f"the answer is not a chat completion: {error}") from None
    if len(told.choices) != 1:
        raise EngineError("malformed", f"expected one choice, got {len(told.choices)}")
    return told
