"""SGLang in mode tokens, through its chat completions: `input_ids` replace the prompt, and the server parses its own samples.

SGLang has no route that only renders. A prompt is read from a discarded answer of one token (`return_prompt_token_ids`), which leaves the
prompt in the cache. A call that continues no answer costs one request, one that continues an answer two, and three if the template drifts.
Sampled ids and logprobs are in `meta_info` (`return_meta_info`). So are the weights' versions: by token, or the version at the end of the
answer. Fields are those of SGLang 0.5.13.

The prompt on the log is the one that the server reports to have read: a server that ignores `input_ids` reads its own rendering.

A prompt with images or sounds is the server's own, since only the server knows which ids stand for them.

Not yet run against a live server: written and tested by the formats in SGLang's sources and its users' reports.
Codes of EngineError: those of `http` and `vllm_chat`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.chat import Answer, ChatRequest, Usage
from proxy.engines.continuing import Continuing, Prompt
from proxy.engines.http import decoded
from proxy.engines.read_prompt import doubt_of_prompt
from proxy.engines.versions import NamedSpan, Versions, versions
from proxy.engines.vllm_chat import FINISHED, VllmChat, WireMessage, fields_of, fitting, ids_of, logprobs_of, message_of
from proxy.errors import EngineError
from topics.types.tokens import Ids, unpack_ids

CHAT = "/v1/chat/completions"
OF_VLLM = ("return_token_ids", "top_logprobs", "session_id", "cache_salt")
"""Fields that SGLang lacks or names differently."""


class _Meta(msgspec.Struct):
    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None
    weight_versions: list[NamedSpan] | None = None
    weight_version: str | None = None
    cached_tokens: int | None = None
    prompt_tokens: int | None = None


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
        """Takes the arguments of `VllmChat`."""
        super().__init__(base_url, model, **options)
        self._continuing = Continuing(self._render)

    async def _answer(self, request: ChatRequest, session_id: str) -> Answer:  # noqa: ARG002 - its chat has no place for it
        """One completion of one to three requests. Raises EngineError."""
        prompt = None
        if request.continued is not None and not request.has_media:
            prompt = await self._continuing.prompt(request, await self._render(request))
        body = await fitting(request, lambda limited: self._http.post(CHAT, to_wire(limited, self._model, prompt)))
        return from_wire(body, self._model, self._logprobs_mode, prompt)

    async def _render(self, request: ChatRequest) -> Ids:
        bare = msgspec.structs.replace(request.sampling, max_tokens=1, temperature=0.0)
        # A grammar and stop strings don't affect the prompt, and compiling a grammar takes time.
        probe = msgspec.structs.replace(request, sampling=bare, stop=[], response_format=msgspec.Raw())
        body = _read(await self._http.post(CHAT, to_wire(probe, self._model, None)))
        return unpack_ids(_prompt_ids(body))


def to_wire(request: ChatRequest, model: str, prompt: Prompt | None) -> bytes:
    """The request in SGLang's format; `prompt` replaces the rendering of its messages, the other fields still apply."""
    fields = {name: value for name, value in fields_of(request, model, "").items() if name not in OF_VLLM}
    fields |= {"return_meta_info": True, "return_prompt_token_ids": True}
    if prompt is not None:
        fields["input_ids"] = prompt.ids.tolist()
    if request.cache_salt is not None:
        fields["extra_key"] = request.cache_salt
    return _encode(fields)


def from_wire(body: bytes, model: str, logprobs_mode: str, prompt: Prompt | None) -> Answer:
    """The verified answer. Raises EngineError with the reason."""
    answer = _read(body)
    choice = answer.choices[0]
    if choice.finish_reason not in FINISHED:
        raise EngineError("unfinished", f"finish_reason is {choice.finish_reason!r}", retryable=True)
    meta = choice.meta_info or _Meta()
    if not meta.output_token_logprobs:
        raise EngineError("no_token_ids", "the answer has no meta_info.output_token_logprobs")
    sampled = ids_of([token_id for _, token_id, _ in meta.output_token_logprobs], "output_token_logprobs")
    prompt_ids = _prompt_ids(answer)
    doubt = doubt_of_prompt(prompt_ids, meta.prompt_tokens, None if prompt is None else prompt.ids.tobytes())
    count = len(meta.output_token_logprobs)
    return Answer(
        message=message_of(choice.message),
        finish_reason=choice.finish_reason,  # type: ignore[arg-type] # it is one of FINISHED
        usage=Usage(len(prompt_ids) // 4, count, meta.cached_tokens),
        prompt_ids=prompt_ids,
        sampled_ids=sampled,
        logprobs=logprobs_of([logprob for logprob, _, _ in meta.output_token_logprobs]),
        model=answer.model or model,
        logprobs_mode=logprobs_mode,
        # A number is one of the model's own end tokens.
        stop_sequence=choice.matched_stop if isinstance(choice.matched_stop, str) else None,
        realigned=0 if prompt is None or doubt is not None else prompt.realigned,
        prompt_doubt=doubt,
        **_versions(meta, count)._asdict(),
    )


def _versions(meta: _Meta, sampled: int) -> Versions:
    """Versions by token if reported; otherwise the one name for all tokens, which the server writes at the end of the answer."""
    if meta.weight_versions or meta.weight_version is None:
        return versions(meta.weight_versions, sampled)
    at_end = versions([NamedSpan(meta.weight_version, 0, sampled)], sampled)
    return at_end if at_end.policy_version is None else at_end._replace(policy_doubt="late")


def _prompt_ids(answer: _Body) -> bytes:
    ids = answer.choices[0].prompt_token_ids
    if not ids:
        raise EngineError("no_token_ids", "the answer has no prompt_token_ids")
    return ids_of(ids, "prompt_token_ids")


def _read(body: bytes) -> _Body:
    answer = decoded(_bodies, body, "chat completion")
    if len(answer.choices) != 1:
        raise EngineError("malformed", f"expected one choice, got {len(answer.choices)}")
    return answer
