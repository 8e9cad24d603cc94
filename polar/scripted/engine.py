"""The scripted engine without HTTP: turns a valid request into an answer and records it."""

from __future__ import annotations  # `array[int]` is no expression before Python 3.12

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import uuid4

from polar.scripted import replay
from polar.scripted.answer import AnswerParser, stop_in, text_before
from polar.scripted.cache import PrefixCache
from polar.scripted.conversation import Turn
from polar.scripted.drift import Drift
from polar.scripted.faults import Fault, Faults, kind_of
from polar.scripted.metrics import EngineMetrics
from polar.scripted.record import Record, Sampled
from polar.scripted.request import ApiError, ChatRequest, DetokenizeRequest, TokenizeRequest, to_turns
from polar.scripted.response import FinishReason, Generation
from polar.scripted.sampler import Sampler, Utterance
from polar.scripted.scripts import Script
from polar.scripted.structured import demanded
from polar.scripted.template import ChatTemplate, conversation
from polar.scripted.token_routes import DerenderRequest, GenerateRequest, derendered, rendered
from polar.scripted.tokenizer import Tokenizer
from polar.scripted.weights import NamedSpan, Weights
from topics.types.completion import ReplayField

DEFAULT_MODEL: Final = "polar-scripted"
DEFAULT_CONTEXT: Final = 131_072


@dataclass(frozen=True, slots=True)
class Work:
    """One call whose answer is sampled and not sent yet."""

    number: int
    request: ChatRequest
    fields: dict[str, Any]
    """All fields of the request, as received."""
    prompt: array[int]
    generation: Generation
    script: str | None
    delay_s: float
    fault: Fault | None
    began: float
    """On the clock of `time.monotonic`."""


class Engine:
    """Answers requests from scripts, in the place of an inference server."""

    def __init__(
        self,
        scripts: Sequence[Script] = (),
        *,
        seed: int = 0,
        model: str = DEFAULT_MODEL,
        max_model_len: int = DEFAULT_CONTEXT,
        record: Record | None = None,
        drifts: frozenset[Drift] = frozenset(),
        returns: frozenset[ReplayField] = frozenset(),
    ) -> None:
        """`returns`: what to return beside tokens, as a vLLM with the flags for it."""
        self.model: Final = model
        self.max_model_len: Final = max_model_len
        self.returns: Final = returns
        self.started: Final = time.time()
        """Unix seconds."""
        self.metrics: Final = EngineMetrics()
        self.record: Final = record if record is not None else Record()
        self.faults: Final = Faults()
        self.weights: Final = Weights()
        self.tokenizer: Final = Tokenizer()
        self._template = ChatTemplate(self.tokenizer, drifts)
        self._parser = AnswerParser(self.tokenizer)
        self._cache = PrefixCache()
        self._sampler = Sampler(self.tokenizer, self._template, scripts, seed)

    def tokenize(self, request: TokenizeRequest, fields: dict[str, Any]) -> list[int]:
        """Token ids of a text or of a chat's prompt. Raises ApiError 400."""
        if request.messages is None:
            return self.tokenizer.encode(request.prompt or "").tolist()
        ids = self._template.encode(
            to_turns(request.messages),
            fields.get("tools") or (),
            add_generation_prompt=request.add_generation_prompt,
        )
        return ids.tolist()

    def detokenize(self, request: DetokenizeRequest) -> str:
        """The text of token ids; special tokens appear by name. Raises ApiError 400 for an invalid id."""
        for token_id in request.tokens:
            if not 0 <= token_id < self.tokenizer.size:
                raise ApiError(
                    400, f"{token_id} is not a token id; ids are below {self.tokenizer.size}", param="tokens"
                )
        return self.tokenizer.decode(request.tokens)

    def begin(self, request: ChatRequest, fields: dict[str, Any]) -> Work:
        """Sample the answer to a request, and take the next fault.

        Raises ApiError: 404 for another model, 400 if the prompt and the requested tokens exceed the context length.
        """
        if request.model not in (None, self.model):
            raise ApiError(404, f"The model `{request.model}` does not exist; `{self.model}` does.", param="model")
        turns = to_turns(request.messages)
        prompt = self._template.encode(turns, fields.get("tools") or ())
        return self._begin(request, fields, turns, prompt, demanded(request, fields))

    def begin_tokens(self, request: GenerateRequest, fields: dict[str, Any], session_id: str | None) -> Work:
        """Like `begin`, for a prompt of token ids. Raises ApiError 500, as vLLM, for sampling that it returns no masks of."""
        params = request.sampling_params
        if "sampling_mask" in self.returns and ((params.top_k or 0) < 1 or params.temperature == 0):
            raise ApiError(500, "")
        turns, tools = conversation(request.token_ids, self.tokenizer, self._parser)
        return self._begin(
            request.as_chat(tools, session_id), fields, turns, array("i", request.token_ids), request.demanded
        )

    def render(self, request: ChatRequest, fields: dict[str, Any]) -> dict[str, Any]:
        """The request to `begin_tokens` that corresponds to a chat request. Raises ApiError as `begin`."""
        turns = to_turns(request.messages)
        prompt = self._template.encode(turns, fields.get("tools") or ())
        limit = self._token_limit(request, prompt)
        return rendered(request, fields, prompt.tolist(), limit, demanded(request, fields))

    def replayed(self, request: GenerateRequest, generation: Generation) -> dict[str, Any]:
        """Fields of a choice for trainers that replay it."""
        params, sizes = request.sampling_params, (request.sampling_params.top_k or 0, self.tokenizer.size)
        ids = generation.prompt_token_ids, generation.token_ids
        return replay.fields(self.returns, *ids, params.routed_experts_prompt_start, *sizes)

    def derender(self, request: DerenderRequest) -> dict[str, Any]:
        """The chat completion of sampled tokens. As in vLLM, special tokens that no parser removes are text."""
        return derendered(request, self._parser, self.tokenizer, self.model)

    def _begin(
        self,
        request: ChatRequest,
        fields: dict[str, Any],
        turns: Sequence[Turn],
        prompt: array[int],
        demanded_turn: Turn | None,
    ) -> Work:
        limit = self._token_limit(request, prompt)
        number = self.record.next_call()
        utterance = self._sampler.answer(number, turns, request.offered_tools, request.sample, demanded_turn)
        generation = self._generation(request, prompt, list(utterance.token_ids[:limit]), utterance)
        fault = self.faults.take() or utterance.fault
        return Work(
            number, request, fields, prompt, generation, utterance.script, utterance.delay_s, fault, time.monotonic()
        )

    def _generation(
        self, request: ChatRequest, prompt: array[int], token_ids: list[int], utterance: Utterance
    ) -> Generation:
        """The generation of an utterance, of which the token limit allows the first `token_ids`."""
        deltas = self._parser.deltas(token_ids)
        finish_reason: FinishReason = "stop"
        stop_reason = None
        if stopped := stop_in(deltas, request.stops):
            count, stop_reason = stopped
            token_ids = token_ids[:count]
            deltas = text_before(self._parser.deltas(token_ids), stop_reason)
        elif len(utterance.token_ids) > len(token_ids):
            finish_reason = "length"
        elif any(delta.calls for delta in deltas):
            finish_reason = "tool_calls"
        return Generation(
            request_id=f"chatcmpl-{request.request_id or uuid4().hex}",
            model=self.model,
            prompt_token_ids=prompt.tolist(),
            token_ids=token_ids,
            logprobs=list(utterance.logprobs[: len(token_ids)]),
            deltas=deltas,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            cached_tokens=self._cache.hit((request.sample, request.cache_salt), prompt),
            reasoning_tokens=self._parser.reasoning_tokens(token_ids),
            top_alternatives=request.top_alternatives,
            returns_token_ids=bool(request.return_token_ids),
        )

    def write_down(self, work: Work, outcome: Literal["completed", "aborted"], tokens: int) -> list[NamedSpan]:
        """Add a call to the record and the prefix cache, with the first `tokens` of its sampled tokens.

        Returns the weights that sampled them, if sampling ends now.
        """
        generation, weights = work.generation, self.weights.spans(work.began, time.monotonic(), tokens)
        self._cache.keep((work.request.sample, work.request.cache_salt), work.prompt, generation.token_ids[:tokens])
        self.metrics.count(outcome, len(generation.prompt_token_ids), tokens)
        self.record.append(
            Sampled(
                call=work.number,
                request_id=generation.request_id,
                session_id=work.request.sample,
                model=generation.model,
                script=work.script,
                stream=bool(work.request.stream),
                parameters={
                    name: value for name, value in work.fields.items() if name not in ("messages", "tools", "token_ids")
                },
                prompt_token_ids=generation.prompt_token_ids,
                token_ids=generation.token_ids[:tokens],
                logprobs=generation.logprobs[:tokens],
                text=self.tokenizer.decode(generation.token_ids[:tokens]),
                finish_reason=generation.finish_reason if outcome == "completed" else None,
                outcome=outcome,
                fault=kind_of(work.fault) if work.fault else None,
                weight_versions=weights,
            )
        )
        return weights

    def _token_limit(self, request: ChatRequest, prompt: array[int]) -> int:
        """The maximum number of tokens to sample, 1 or more. Raises ApiError 400 with vLLM's message."""
        room = self.max_model_len - len(prompt)
        wanted = request.token_limit
        if room < 1 or (wanted is not None and wanted > room):
            raise ApiError(
                400,
                f"This model's maximum context length is {self.max_model_len} tokens. However, you requested {wanted or 0} "
                f"output tokens and your prompt contains {len(prompt)} input tokens, for a total of "
                f"{len(prompt) + (wanted or 0)} tokens. Please reduce the length of the input prompt or the number of "
                "requested output tokens.",
                param="input_tokens",
            )
        return wanted if wanted is not None else room
