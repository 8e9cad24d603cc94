"""Formats a generation as vLLM does: one body, or the chunks of a stream.

With `return_token_ids`, a body or a stream's first chunk has the prompt's ids, and each choice has its sampled ids.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal
from uuid import uuid4

from polar.scripted.answer import Delta, joined
from polar.scripted.tokenizer import Tokenizer

FINGERPRINT: Final = "polar-scripted"
TOKENS_PER_CHUNK: Final = 4

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Generation:
    """The sampled answer of a call. `token_ids`, `logprobs` and `deltas` have the same length."""

    request_id: str
    model: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    deltas: list[Delta]
    finish_reason: FinishReason
    stop_reason: str | None
    """The stop string that ended the answer."""
    cached_tokens: int
    """Prompt tokens in the prefix cache."""
    reasoning_tokens: int
    top_alternatives: int | None
    """Number of alternatives per token; None: no logprobs."""
    returns_token_ids: bool


class Wire:
    def __init__(self, generation: Generation, tokenizer: Tokenizer) -> None:
        self._generation = generation
        self._tokenizer = tokenizer
        self._created = int(time.time())
        self._call_ids = [f"call_{uuid4().hex[:24]}" for _ in joined(generation.deltas).calls]

    def body(self) -> dict[str, Any]:
        whole = joined(self._generation.deltas)
        message = {
            "role": "assistant",
            "content": whole.text or (None if whole.calls else ""),
            "refusal": None,
            "tool_calls": [
                {"id": self._call_ids[index], "type": "function", "function": asdict(call)}
                for index, call in whole.calls
            ],
            "reasoning": whole.reasoning or None,
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(0, len(self._generation.token_ids)),
            "finish_reason": self._generation.finish_reason,
            "stop_reason": self._generation.stop_reason,
            "token_ids": self._generation.token_ids if self._generation.returns_token_ids else None,
        }
        return self._head("chat.completion") | {
            "choices": [choice],
            "usage": self.usage(),
            "prompt_logprobs": None,
            "prompt_token_ids": self._generation.prompt_token_ids if self._generation.returns_token_ids else None,
        }

    def chunks(self) -> Iterator[tuple[dict[str, Any], int]]:
        """The chunks of a stream, objects `chat.completion.chunk`, each with the number of tokens sent so far. The first has the
        role, the last, apart from the usage chunk, the finish reason."""
        first = self._chunk({"role": "assistant", "content": ""}, 0, 0)
        if self._generation.returns_token_ids:
            first["prompt_token_ids"] = self._generation.prompt_token_ids
        yield first, 0
        total = len(self._generation.token_ids)
        for start in range(0, total, TOKENS_PER_CHUNK):
            stop = min(start + TOKENS_PER_CHUNK, total)
            yield self._chunk(self._delta(self._generation.deltas[start:stop]), start, stop), stop

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk, if `stream_options.include_usage` is set."""
        return self._head("chat.completion.chunk") | {"choices": [], "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        prompt, sampled = len(self._generation.prompt_token_ids), len(self._generation.token_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
            "prompt_tokens_details": {"cached_tokens": self._generation.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self._generation.reasoning_tokens},
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._generation.request_id,
            "object": kind,
            "created": self._created,
            "model": self._generation.model,
            "system_fingerprint": FINGERPRINT,
        }

    def _chunk(self, delta: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
        is_last = 0 < stop == len(self._generation.token_ids)
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": self._logprobs(start, stop) if stop else None,
            "finish_reason": self._generation.finish_reason if is_last else None,
        }
        if is_last:
            choice["stop_reason"] = self._generation.stop_reason
        if stop and self._generation.returns_token_ids:
            choice["token_ids"] = self._generation.token_ids[start:stop]
        return self._head("chat.completion.chunk") | {"choices": [choice]}

    def _delta(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        """The message delta of some tokens; empty if they add nothing."""
        added = joined(deltas)
        delta: dict[str, Any] = {}
        if added.text:
            delta["content"] = added.text
        if added.reasoning:
            delta["reasoning"] = added.reasoning
        if added.calls:
            delta["tool_calls"] = [
                {"index": index, "id": self._call_ids[index], "type": "function", "function": asdict(call)}
                if call.name
                else {"index": index, "function": {"arguments": call.arguments}}
                for index, call in added.calls
            ]
        return delta

    def _logprobs(self, start: int, stop: int) -> dict[str, Any] | None:
        alternatives = self._generation.top_alternatives
        if alternatives is None:
            return None
        entries = []
        for token_id, logprob in zip(
            self._generation.token_ids[start:stop], self._generation.logprobs[start:stop], strict=True
        ):
            # The sampled token comes first; the others are invented, each half as likely as the one before.
            top = [
                self._entry((token_id + rank) % self._tokenizer.size, logprob - 0.69 * rank)
                for rank in range(alternatives)
            ]
            entries.append(self._entry(token_id, logprob) | {"top_logprobs": top})
        return {"content": entries}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.bytes_of(token_id)
        return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
