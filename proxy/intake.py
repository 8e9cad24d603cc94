"""From a request that was read to the calls that answer it: what the key imposes, whose call it is, what it is for.

Everything here happens at once, without waiting, between a claim that is open and the calls that are in flight on it: so a key that
closes finds its calls. What needs the engine, Kafka or time is the pipeline's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from polar.keys import KeyClaims
from polar.types.completion import Sampling
from proxy.call import Call, Pipeline
from proxy.capture import Asked
from proxy.chat import ChatRequest
from proxy.dialects.base import Dialect
from proxy.history import transcript
from proxy.kinds import kind_of
from proxy.lineage import lineage_of
from proxy.reply import Reply
from proxy.session import Claim


class Intake:
    """Makes calls of requests."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def reply_to(
        self,
        dialect: Dialect,
        claim: Claim,
        request: ChatRequest,
        headers: Mapping[str, str],
        *,
        size: int,
        received_at: float,
    ) -> Reply:
        """The calls of a request of `size` bytes, under way. Raises Refused for what the claim may not have."""
        messages, spelled = claim.turns.restore(request.messages)
        asked_for = imposed(msgspec.structs.replace(request, messages=messages), claim.key)
        told = transcript(spelled, request.tools)
        lineage = lineage_of(headers)
        kind = kind_of(request, lineage)
        first = dialect.id_prefix + os.urandom(16).hex()
        calls = []
        for choice in range(request.choices):
            asked = Asked(
                call_id=first if choice == 0 else f"{first}.{choice}",
                claim=claim,
                dialect=dialect.name,
                engine=self._pipeline.engines.for_model(request.model).name,
                request=_of_choice(asked_for, choice),
                told=told,
                received_at=received_at,
                choice=choice,
                lineage=lineage,
                kind=kind,
            )
            calls.append(Call(self._pipeline, asked, size))
        return Reply(self._pipeline, calls)


def imposed(request: ChatRequest, key: KeyClaims) -> ChatRequest:
    """The request with the key's sampling in place of the harness's, and the record's flags set."""
    asked = request.sampling
    values = {name: key.sampling.get(name, getattr(asked, name)) for name in SAMPLING}
    return msgspec.structs.replace(
        request,
        sampling=Sampling(**values, truncated=_truncates(values), grammar=request.is_grammar_bound),
    )


SAMPLING = tuple(name for name in Sampling.__struct_fields__ if name not in ("truncated", "grammar"))


def _truncates(values: dict[str, float | int | None]) -> bool:
    top_p, top_k, min_p = values["top_p"], values["top_k"], values["min_p"]
    return (top_p is not None and top_p < 1) or (top_k is not None and top_k > 0) or (min_p is not None and min_p > 0)


def _of_choice(request: ChatRequest, choice: int) -> ChatRequest:
    """With a seed, each choice has its own, as vLLM does it: else all would be the same."""
    seed = request.sampling.seed
    if choice == 0 or seed is None:
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, seed=seed + choice))
