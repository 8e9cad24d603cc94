"""vLLM's chat completions with token ids: the engine renders the prompt, samples, and returns the ids of both.

Requests never stream, whatever the harness requests. They set `return_token_ids`, `logprobs` and `top_logprobs: 0` (null would empty the
token data). An answer is verified before use: it has prompt ids, sampled ids, and one logprob for each sampled id; each logprob is finite,
not above 0, and no default. Codes of EngineError beside those of `http`: `malformed`, `no_token_ids`, `length_mismatch`, `bad_token_ids`,
`bad_logprobs`, `unfinished`.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, get_args

import msgspec
import numpy as np

from proxy.chat import Answer, ChatRequest, FinishReason, FunctionCall, Message, ToolCall, Usage
from proxy.engines.api_key import ApiKey
from proxy.engines.context import context_in
from proxy.engines.http import UNREADABLE, EngineHttp, decoded
from proxy.engines.ids import lift
from proxy.engines.process import start_in
from proxy.engines.read_prompt import doubt_of_prompt
from proxy.errors import EngineError
from topics.types.completion import UNKNOWN
from topics.types.tokens import IDS, LOGPROBS, count

DEADLINE_S = 600.0
"""Time for one answer: the default timeout of OpenAI's own clients."""
HEALTH_S = 3.0
"""Time for `/health`, which is answered at once unless the process is busy with parsing or rendering."""
START_S = 5.0
"""Time for `/metrics`, which took vLLM 0.32 50 ms on two busy cores; calls may wait for it once per process."""
MODELS_S = 3.0
"""Time for `/v1/models`, which needs no model; a client that lists models waits for it."""
NO_LOGPROB = -9999.0
"""vLLM's default, also written for -inf: no sampled token has either."""
ABOVE_ZERO = 1e-4
"""Rounding error allowed above 0."""
FINISHED: frozenset[str] = frozenset(get_args(FinishReason))
EFFORTS = frozenset({"none", "low", "medium", "high"})
"""Values of reasoning_effort that vLLM accepts; it refuses a call with any other."""


class _WireFunction(msgspec.Struct):
    name: str
    arguments: str = ""


class _WireCall(msgspec.Struct):
    function: _WireFunction
    id: str | None = None


class WireMessage(msgspec.Struct):
    """An assistant's message in a chat completion."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_WireCall] | None = None


class _Entry(msgspec.Struct):
    logprob: float | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Entry] | None = None


class _Choice(msgspec.Struct):
    message: WireMessage
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]
    prompt_token_ids: list[int] | None = None
    model: str = ""
    usage: _Usage | None = None


class _Count(msgspec.Struct):
    count: int


class _Text(msgspec.Struct):
    prompt: str


_bodies = msgspec.json.Decoder(_Body)
_texts = msgspec.json.Decoder(_Text)
_counts = msgspec.json.Decoder(_Count)
_encode = msgspec.json.Encoder().encode


class VllmChat:
    """The engine `vllm_chat`."""

    owns_prompts: ClassVar[bool] = False

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        logprobs_mode: str = UNKNOWN,
        deadline_s: float = DEADLINE_S,
        api_key: ApiKey | None = None,
    ) -> None:
        """`base_url` with or without `/v1`; `logprobs_mode` as the server was started: raw, processed or unknown."""
        self._model = model
        self._logprobs_mode = logprobs_mode
        self._deadline_s = deadline_s
        self._http = EngineHttp(base_url, deadline_s=deadline_s, api_key=api_key)

    async def start(self) -> None:
        """Nothing to do: calls open connections as they need them."""

    async def stop(self) -> None:
        """Close connections."""
        self._http.stop()

    async def complete(self, request: ChatRequest, session_id: str) -> Answer:
        """One answer within the deadline, however many requests it needs. Raises EngineError."""
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._answer(request, session_id)
        except TimeoutError:
            raise EngineError("timeout", f"no whole answer within {self._deadline_s:g} s") from None

    async def _answer(self, request: ChatRequest, session_id: str) -> Answer:
        """One chat completion. Raises EngineError."""
        body = await fitting(request, lambda limited: self._post(limited, session_id))
        return from_wire(body, self._model, self._logprobs_mode)

    async def count_tokens(self, request: ChatRequest) -> int:
        """By `/tokenize`, which renders the chat template. Raises EngineError."""
        fields = {"model": self._model, "messages": request.messages, "tools": request.tools or None}
        body = await self._http.post("/tokenize", _encode(fields))
        return decoded(_counts, body, "count of tokens").count

    async def detokenize(self, token_ids: list[int]) -> str:
        """The text of tokens. Raises EngineError."""
        body = await self._http.post("/detokenize", _encode({"model": self._model, "tokens": token_ids}))
        return decoded(_texts, body, "text of tokens").prompt

    async def is_healthy(self) -> bool:
        """By `/health`."""
        return await self._http.is_answered("/health", HEALTH_S)

    @property
    def closings(self) -> int:
        """Number of kept connections that the server has closed."""
        return self._http.closings

    async def started_ms(self) -> int | None:
        """By `/metrics`. Raises EngineError."""
        metrics = await self._http.get("/metrics", START_S)
        return None if metrics is None else start_in(metrics)

    async def context(self) -> int | None:
        """By `/v1/models`. Raises EngineError."""
        models = await self._http.get("/v1/models", MODELS_S)
        return None if models is None else context_in(models, self._model)

    async def _post(self, request: ChatRequest, session_id: str) -> bytes:
        return await self._http.post("/v1/chat/completions", to_wire(request, self._model, session_id))


async def fitting(request: ChatRequest, ask: Callable[[ChatRequest], Awaitable[bytes]]) -> bytes:
    """The server's answer to a request; the request's token limit is dropped if with it the answer doesn't fit. Raises EngineError."""
    try:
        return await ask(request)
    except EngineError as fault:
        if fault.code != "context_length" or request.sampling.max_tokens is None:
            raise
    # Harnesses request 32,000 tokens of any model. Without a limit the server samples what the context has left, which is less, or reports
    # that the prompt itself doesn't fit: with a limit, newer vLLM's message doesn't distinguish the two.
    unlimited = msgspec.structs.replace(request.sampling, max_tokens=None)
    return await ask(msgspec.structs.replace(request, sampling=unlimited))


def to_wire(request: ChatRequest, model: str, session_id: str) -> bytes:
    """The request in vLLM's format."""
    return _encode(fields_of(request, model, session_id))


def fields_of(request: ChatRequest, model: str, session_id: str) -> dict[str, Any]:
    """The request's fields in vLLM's format."""
    sampling = request.sampling
    wire: dict[str, Any] = {
        "model": model,
        "messages": request.messages,
        "tools": request.tools or None,
        "tool_choice": request.tool_choice if request.tools else None,
        "parallel_tool_calls": request.parallel_tool_calls,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed,
        "max_completion_tokens": sampling.max_tokens,
        "stop": request.stop or None,
        "response_format": request.response_format if bytes(request.response_format) else None,
        "reasoning_effort": request.reasoning_effort if request.reasoning_effort in EFFORTS else None,
        "session_id": session_id,
        "cache_salt": request.cache_salt,
        "return_token_ids": True,
        "logprobs": True,
        "top_logprobs": 0,
    }
    return {name: value for name, value in wire.items() if value is not None}


def from_wire(body: bytes, model: str, logprobs_mode: str) -> Answer:
    """The verified answer. Raises EngineError with the reason."""
    body, prompt_ids = lift(body, "prompt_token_ids")
    answer = _decode(body)
    if len(answer.choices) != 1:
        raise EngineError("malformed", f"expected one choice, got {len(answer.choices)}")
    choice = answer.choices[0]
    if choice.finish_reason not in FINISHED:
        # A weight update ends answers with `abort`: half an answer.
        raise EngineError("unfinished", f"finish_reason is {choice.finish_reason!r}", retryable=True)
    if prompt_ids is None and answer.prompt_token_ids:
        prompt_ids = ids_of(answer.prompt_token_ids, "prompt_token_ids")
    if prompt_ids is None or not choice.token_ids:
        missing = "prompt_token_ids" if prompt_ids is None else "token_ids"
        raise EngineError("no_token_ids", f"the answer has no {missing}")
    entries = choice.logprobs.content if choice.logprobs is not None else None
    if entries is None or len(entries) != len(choice.token_ids):
        found = "no" if entries is None else len(entries)
        raise EngineError("length_mismatch", f"{len(choice.token_ids)} token ids, {found} logprobs")
    usage = answer.usage or _Usage()
    return Answer(
        message=message_of(choice.message),
        finish_reason=choice.finish_reason,  # type: ignore[arg-type] # it is one of FINISHED
        usage=_usage(usage, count(prompt_ids), len(choice.token_ids)),
        prompt_ids=prompt_ids,
        sampled_ids=ids_of(choice.token_ids, "token_ids"),
        logprobs=logprobs_of([entry.logprob for entry in entries]),
        model=answer.model or model,
        logprobs_mode=logprobs_mode,
        # A number is one of the model's own end tokens.
        stop_sequence=choice.stop_reason if isinstance(choice.stop_reason, str) else None,
        prompt_doubt=doubt_of_prompt(prompt_ids, usage.prompt_tokens),
    )


def _usage(reported: _Usage, prompt: int, sampled: int) -> Usage:
    """Token counts by the ids; cached and reasoning tokens as the engine reports them."""
    of_prompt = reported.prompt_tokens_details or _Details()
    of_sampled = reported.completion_tokens_details or _Details()
    return Usage(prompt, sampled, of_prompt.cached_tokens, of_sampled.reasoning_tokens)


def _decode(body: bytes) -> _Body:
    try:
        return _bodies.decode(body)
    except UNREADABLE as error:
        if b"NaN" in body or b"Infinity" in body:
            return _decode_with_nan(body)
        raise EngineError("malformed", f"the answer is no chat completion: {error}") from None


def _decode_with_nan(body: bytes) -> _Body:
    """The body by Python's decoder, which accepts NaN: the log's reason is then the bad logprob, not bad syntax."""
    try:
        answer = msgspec.convert(json.loads(body), _Body)
        _encode(answer)  # Python's decoder also accepts half a surrogate pair, which no log can hold
    except (ValueError, RecursionError) as error:
        raise EngineError("malformed", f"the answer is no chat completion: {error}") from None
    return answer


def ids_of(ids: list[int], field: str) -> bytes:
    """Token ids, int32 LE. Raises EngineError `bad_token_ids`, naming the field."""
    try:
        packed = np.fromiter(ids, dtype=IDS, count=len(ids))
    except OverflowError:
        raise EngineError("bad_token_ids", f"{field}: an id outside int32") from None
    if int(packed.min()) < 0:
        raise EngineError("bad_token_ids", f"{field}: a negative id ({int(packed.min())})")
    return packed.tobytes()


def logprobs_of(values: list[float | None]) -> bytes:
    """Logprobs of sampled tokens, float32 LE. Raises EngineError `bad_logprobs` for an impossible value."""
    with np.errstate(over="ignore"):
        packed = np.array(values, dtype=LOGPROBS)  # None becomes NaN; a value that is too low becomes -inf
    good = (packed <= ABOVE_ZERO) & (packed > NO_LOGPROB)
    if not good.all():
        at = int((~good).argmax())
        raise EngineError("bad_logprobs", f"logprob {values[at]!r} of sampled token {at}")
    return packed.tobytes()


def message_of(wire: WireMessage) -> Message:
    """The message in canonical form; calls without an id get one."""
    calls = [
        ToolCall(call.id or f"call_{uuid.uuid4().hex[:24]}", FunctionCall(call.function.name, call.function.arguments))
        for call in wire.tool_calls or ()
    ]
    reasoning = wire.reasoning if wire.reasoning is not None else wire.reasoning_content
    return Message(role="assistant", content=wire.content, reasoning=reasoning, tool_calls=calls)
