"""vLLM in mode tokens: the server renders a prompt, the proxy restores earlier sampled tokens in it, the server samples and parses.

Three routes are used, which vLLM serves with `--enable-scale-out`: `/v1/chat/completions/render` (messages to token ids, sampling
parameters and the grammar), `/inference/v1/generate` (token ids to token ids), `/v1/chat/completions/derender` (token ids to a message,
with the server's own parsers). No text is tokenized here. The message is the one of `vllm_chat`: the end token of a turn and a stop
string are among the tokens and not in the text. A prompt with images or sounds stays as it was rendered, since only the server knows
their places.

Codes of EngineError: those of `http` and `vllm_chat`, and `unparsed` if the server can't parse the tokens that it sampled.
"""

from __future__ import annotations

import re
import secrets
import string
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, ClassVar, get_args

import msgspec

from proxy.chat import Answer, ChatRequest, FinishReason, Message, ToolCall, Usage
from proxy.engines.continuing import Continuing, Prompt
from proxy.engines.http import UNREADABLE, decoded
from proxy.engines.ids import lift, numbers, without
from proxy.engines.read_prompt import doubt_of_prompt
from proxy.engines.retry import with_retries
from proxy.engines.versions import NamedSpan, versions
from proxy.engines.vllm_chat import VllmChat, WireMessage, fields_of, ids_of, logprobs_of, message_of
from proxy.engines.vllm_replay import FirstRow, VllmReplay
from proxy.errors import EngineError
from topics.types.completion import FREE, ReplayField, Sampling, truncates
from topics.types.tokens import Ids, common_prefix, count, unpack_ids

RENDER = "/v1/chat/completions/render"
GENERATE = "/inference/v1/generate"
DERENDER = "/v1/chat/completions/derender"
OF_ONE_ROUTE = ("return_token_ids", "max_completion_tokens", "top_logprobs", "logprobs", "session_id")
"""Fields of a chat completion that affect neither prompt nor parsing; with a limit, a long prompt would be refused."""
ENDED = ("stop", "length")


class _Rendered(msgspec.Struct):
    """A request for `GENERATE` that the server made; raw fields are passed on unchanged."""

    token_ids: list[int] | None = None
    sampling_params: dict[str, Any] | None = None
    features: msgspec.Raw = msgspec.Raw(b"null")
    model: msgspec.Raw = msgspec.Raw(b"null")
    reasoning_ended: msgspec.Raw = msgspec.Raw(b"null")
    reasoning_parser_kwargs: msgspec.Raw = msgspec.Raw(b"null")
    cache_salt: msgspec.Raw = msgspec.Raw(b"null")
    priority: int = 0


class _Placeholders(msgspec.Struct):
    offset: int


class _Features(msgspec.Struct):
    """The places of images and sounds in a rendered prompt; the processed pixels beside them aren't decoded."""

    mm_placeholders: dict[str, list[_Placeholders]] = {}


class _Entry(msgspec.Struct):
    token_id: int
    logprob: float | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Entry] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    weight_versions: list[NamedSpan] | None = None
    routed_experts: msgspec.Raw = msgspec.Raw()
    sampling_mask: msgspec.Raw = msgspec.Raw()


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Generated(msgspec.Struct):
    choices: list[_Choice]
    model: str | None = None
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"null")
    usage: _Usage | None = None


class _DerenderedChoice(msgspec.Struct):
    message: WireMessage


class _Derendered(msgspec.Struct):
    choices: list[_DerenderedChoice]


NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
}  # fmt: skip
"""Values that a rendering leaves out, since they are the defaults of vLLM's `SamplingParams`."""
DRAWN = re.compile("[0-9a-f]{16,32}")
"""Ids that derender draws at random (`random_uuid` of vLLM 0.32), although its parsers may have found one."""
ID_CHARACTERS, ID_LENGTH = string.ascii_letters + string.digits, 9
"""The only form of ids that Mistral's templates accept."""

_rendered = msgspec.json.Decoder(_Rendered)
_features = msgspec.json.Decoder(_Features | None)
_generated = msgspec.json.Decoder(_Generated)
_derendered = msgspec.json.Decoder(_Derendered)
_id_lists = msgspec.json.Decoder(list[int] | None)
_encode = msgspec.json.Encoder().encode


class VllmTokens(VllmChat):
    """The engine `vllm_tokens`."""

    owns_prompts = True
    captures: ClassVar[frozenset[ReplayField]] = frozenset(get_args(ReplayField))

    def __init__(self, base_url: str, model: str, *, capture: Collection[ReplayField] = (), **options: Any) -> None:
        """As `VllmChat`; `capture`: what to return of each call beside its tokens."""
        super().__init__(base_url, model, **options)
        self._continuing = Continuing(self._ids)
        self._replay = VllmReplay(capture)

    async def _answer(self, request: ChatRequest, session_id: str) -> Answer:
        """One completion of at least three requests. Raises EngineError."""
        fields = self._fields(request)
        rendered, ids = await self._render(fields)
        is_text = bytes(rendered.features) == b"null" and not request.has_media
        prompt = await self._continuing.prompt(request, ids) if is_text else Prompt(ids, 0)
        # The salt is read after the renders: weights may have changed meanwhile.
        salt = {} if request.cache_salt is None else {"cache_salt": request.cache_salt}
        body = generation_of(rendered, prompt.ids, request.sampling.max_tokens) | salt
        self._replay.require_masks(body["sampling_params"])
        first = self._first_row(request, prompt.ids, is_text=is_text)
        if first.start:
            body["sampling_params"]["routed_experts_prompt_start"] = first.start
        sent = _encode(body)
        answer = without(
            await self._http.post(GENERATE, sent, session_id), "prompt_token_ids", numbers(sent, "token_ids")
        )
        generated = decoded(_generated, answer, "generation")
        choice = _checked(generated)
        sampled, logprobs = ids_of(choice.token_ids or [], "token_ids"), _logprobs(choice)
        message, unsaid_calls = await self._message(request, fields, prompt.ids, choice)
        usage, prompt_ids = generated.usage or _Usage(), prompt.ids.tobytes()
        details = usage.prompt_tokens_details or _Details()
        replay, uncaptured = self._replay.values(
            choice.routed_experts, choice.sampling_mask, first, len(prompt.ids), unpack_ids(sampled)
        )
        return Answer(
            message=message,
            finish_reason=_finish_reason(request, message, choice),
            usage=Usage(len(prompt.ids), count(sampled), details.cached_tokens),
            prompt_ids=prompt_ids,
            sampled_ids=sampled,
            logprobs=logprobs,
            model=generated.model or self._model,
            logprobs_mode=self._logprobs_mode,
            sampling=None if rendered.sampling_params is None else _sampling(request, rendered.sampling_params),
            stop_sequence=_stop_string(choice),
            realigned=prompt.realigned,
            unsaid_calls=unsaid_calls,
            media_positions=_media_positions(rendered, request),
            prompt_doubt=doubt_of_prompt(prompt_ids, usage.prompt_tokens, _read_ids(generated)),
            replay=replay,
            uncaptured=uncaptured,
            **versions(choice.weight_versions, count(sampled))._asdict(),
        )

    def _first_row(self, request: ChatRequest, prompt: Ids, *, is_text: bool) -> FirstRow:
        """The first token whose routed experts are requested: the last one of the answer that the prompt continues, if that call has
        the others. Equal placeholders can stand for other images."""
        continued = request.continued
        if not self._replay.wants_experts:
            return FirstRow(0, None, fits=True)
        is_continued = is_text and continued is not None and continued.routed_by is not None
        if continued is None or not is_continued or common_prefix(continued.tokens, prompt) < len(continued.tokens):
            return self._replay.first_row(len(prompt), 0, None)
        return self._replay.first_row(len(prompt), len(continued.tokens) - 1, continued.routed_by)

    def _fields(self, request: ChatRequest) -> dict[str, Any]:
        wire = fields_of(request, self._model, "")
        return {name: value for name, value in wire.items() if name not in OF_ONE_ROUTE}

    async def _render(self, fields: dict[str, Any]) -> tuple[_Rendered, Ids]:
        body, ids = lift(await self._http.post(RENDER, _encode(fields)), "token_ids")
        rendered = decoded(_rendered, body, "rendering")
        if ids is None and not rendered.token_ids:
            raise EngineError("no_token_ids", "the rendering has no token_ids")
        return rendered, unpack_ids(ids or ids_of(rendered.token_ids or [], "token_ids"))

    async def _ids(self, request: ChatRequest) -> Ids:
        return (await self._render(self._fields(request)))[1]

    async def _message(
        self, request: ChatRequest, fields: dict[str, Any], prompt: Ids, choice: _Choice
    ) -> tuple[Message, int]:
        """The message of the sampled tokens by the server's parsers, and the number of tool calls that are left out of it."""
        ids = choice.token_ids or []
        if choice.finish_reason == "stop" and not isinstance(choice.stop_reason, str):
            ids = ids[:-1]  # the end token, which would be in the text
        if not ids:
            return Message("assistant", content=""), 0
        only = {"index": 0, "token_ids": ids, "finish_reason": choice.finish_reason}
        response = {"request_id": "derender", "choices": [only], "prompt_token_ids": prompt.tolist()}
        request_body = {"model": self._model, "generate_response": response, "chat_request": fields}
        try:
            # Only this request is retried: sampling again would keep only answers that parse, a biased choice.
            body = await with_retries(lambda: self._http.post(DERENDER, _encode(request_body)))
        except EngineError as fault:
            raise EngineError("unparsed", f"{fault.code}: {fault.message}", status=fault.status) from None
        derendered = decoded(_derendered, body, "derendering")
        if len(derendered.choices) != 1:
            raise EngineError("malformed", f"expected one derendered choice, got {len(derendered.choices)}")
        whole = message_of(derendered.choices[0].message)
        calls = [_named(call) for call in whole.tool_calls]
        kept = calls[:1] if request.parallel_tool_calls is False else calls
        message = msgspec.structs.replace(whole, tool_calls=kept)
        stop = _stop_string(choice)
        return message if stop is None else _before(message, stop), len(calls) - len(kept)


def _named(call: ToolCall) -> ToolCall:
    """The call, with an id that every template accepts if the server drew the id at random."""
    if DRAWN.fullmatch(call.id) is None:
        return call
    return msgspec.structs.replace(call, id="".join(secrets.choice(ID_CHARACTERS) for _ in range(ID_LENGTH)))


def generation_of(rendered: _Rendered, ids: Ids, max_tokens: int | None) -> dict[str, Any]:
    """The request to continue these ids, otherwise as the server rendered it."""
    params = dict(rendered.sampling_params or {})
    most = params.pop("max_tokens", None)
    if max_tokens is not None:
        # The server's maximum is of its own rendering; if our longer prompt leaves less room, the server ends the answer there.
        params["max_tokens"] = max_tokens if most is None else min(max_tokens, most)
    body = msgspec.structs.asdict(rendered) | {"token_ids": ids.tolist()}
    return body | {"sampling_params": params | {"logprobs": 0, "n": 1}, "stream": False, "return_token_ids": True}


def _media_positions(rendered: _Rendered, request: ChatRequest) -> tuple[int, ...] | None:
    """The places of the request's images and sounds, each kind in its order; None: the rendering has others, or in another form."""
    try:
        features = _features.decode(rendered.features)
    except UNREADABLE:
        return None
    if features is None:
        return None
    kinds = [part.kind for _, part in request.media]
    places = features.mm_placeholders
    if Counter(kinds) != Counter({kind: len(found) for kind, found in places.items()}):
        return None
    remaining = {kind: iter(found) for kind, found in places.items()}
    return tuple(next(remaining[kind]).offset for kind in kinds)


def _sampling(request: ChatRequest, params: Mapping[str, Any]) -> Sampling:
    """How the server samples by the rendering, which has its own defaults in place of what the request left open."""
    settings = {name: params.get(name, neutral) for name, neutral in NEUTRAL.items()}
    settings["logit_bias"] = params.get("logit_bias") or {}
    try:
        found = msgspec.convert(settings, Sampling)
    except msgspec.ValidationError:
        found = _known(settings)
    is_bound = params.get("structured_outputs") is not None
    return msgspec.structs.replace(
        found,
        seed=request.sampling.seed,
        max_tokens=request.sampling.max_tokens,
        stop=request.sampling.stop,
        truncated=truncates(found.top_p, found.top_k, found.min_p),
        grammar=is_bound,
        grammar_source=(request.grammar_source or "engine") if is_bound else FREE,
    )


def _known(settings: Mapping[str, Any]) -> Sampling:
    """The settings that can be read; the others stay unknown. If `logit_bias` can't be read, the penalties stay unknown as well: a record
    can't leave it open whether there was a bias, and without penalties it would say that there was none."""
    known: dict[str, Any] = {}
    for name, value in settings.items():
        with suppress(msgspec.ValidationError):
            known[name] = getattr(msgspec.convert({name: value}, Sampling), name)
    if "logit_bias" not in known:
        known = {name: value for name, value in known.items() if not name.endswith("_penalty")}
    return Sampling(**known)


def _checked(generated: _Generated) -> _Choice:
    """The only choice, verified to be whole. Raises EngineError."""
    if len(generated.choices) != 1:
        raise EngineError("malformed", f"expected one choice, got {len(generated.choices)}")
    choice = generated.choices[0]
    if choice.finish_reason not in ENDED:
        # A weight update ends answers with `abort`: half an answer.
        raise EngineError("unfinished", f"finish_reason is {choice.finish_reason!r}", retryable=True)
    if not choice.token_ids:
        raise EngineError("no_token_ids", "the answer has no token_ids")
    return choice


def _logprobs(choice: _Choice) -> bytes:
    """Logprobs of the sampled tokens. Raises EngineError."""
    entries = choice.logprobs.content if choice.logprobs is not None else None
    ids = choice.token_ids or []
    if entries is None or len(entries) != len(ids):
        found = "no" if entries is None else len(entries)
        raise EngineError("length_mismatch", f"{len(ids)} token ids, {found} logprobs")
    if any(entry.token_id != token_id for entry, token_id in zip(entries, ids, strict=True)):
        raise EngineError("bad_logprobs", "logprobs are of other tokens than were sampled")
    return logprobs_of([entry.logprob for entry in entries])


def _read_ids(generated: _Generated) -> bytes | None:
    """The prompt's ids as the server read them, int32 LE, if they aren't written as they were sent. If they aren't ids, empty bytes,
    which no recorded prompt is."""
    try:
        ids = _id_lists.decode(generated.prompt_token_ids)
        return ids_of(ids, "prompt_token_ids") if ids else None
    except (*UNREADABLE, EngineError):
        return b""


def _stop_string(choice: _Choice) -> str | None:
    """The stop string that ended the answer; a number is one of the model's own end tokens."""
    return choice.stop_reason if isinstance(choice.stop_reason, str) else None


def _before(message: Message, stop: str) -> Message:
    """The message up to the stop string, which ends the content or the reasoning.

    A stop string in a call's arguments stays: the parser has closed the JSON after it, and a cut would break it.
    """
    content = message.content if isinstance(message.content, str) else None
    if content is not None and stop in content:
        return msgspec.structs.replace(message, content=content[: content.index(stop)])
    if message.reasoning is not None and stop in message.reasoning:
        return msgspec.structs.replace(message, reasoning=message.reasoning[: message.reasoning.index(stop)])
    return message


def _finish_reason(request: ChatRequest, message: Message, choice: _Choice) -> FinishReason:
    """The reason by the rules of chat completions: `tool_calls` for calls that the model chose, `stop` for a forced call."""
    if choice.finish_reason == "length":
        return "length"
    chose = request.tool_choice in (None, "auto", "required")
    return "tool_calls" if message.tool_calls and chose else "stop"
