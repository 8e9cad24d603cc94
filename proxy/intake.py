"""From a request that was read to the calls that answer it: what the key imposes, whose call it is, what it is for.

Everything here happens at once, without waiting, between a claim that is open and the calls that are in flight on it: so a key that
closes finds its calls. What needs the engine, Kafka or time is the pipeline's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import msgspec

from proxy.call import CallTask, Pipeline
from proxy.call_kinds import kind_of
from proxy.capture import CallSpec
from proxy.chat import ChatRequest
from proxy.dialects.base import Dialect
from proxy.lineage import lineage_of
from proxy.metrics import Metrics
from proxy.session.claims import ClaimState
from proxy.session.history import Transcript
from proxy.session.limits import admit
from proxy.session.repeats import is_retry, name_of
from proxy.session.reply import LocalReply, SharedCalls
from topics.environment.keys import KeyClaims
from topics.types.completion import Sampling


class Intake:
    """Makes calls of requests."""

    def __init__(self, pipeline: Pipeline, metrics: Metrics) -> None:
        self._pipeline = pipeline
        self._metrics = metrics

    def reply_to(
        self,
        dialect: Dialect,
        claim: ClaimState,
        request: ChatRequest,
        headers: Mapping[str, str],
        *,
        size: int,
        received_at: float,
    ) -> LocalReply:
        """The answer to a request of `size` bytes, under way. Raises RefusalError for what the claim may not have."""
        lineage = lineage_of(headers)
        engine = self._pipeline.engines.for_model(request.model)
        restored, told = claim.restored(request, engine.name if engine.owns_prompts else None)
        asked_for = imposed(restored, claim.key)
        name = name_of(dialect.name, asked_for, told, lineage)
        answering = claim.repeats.shared(name, is_retry=is_retry(lineage))
        if answering is not None:
            self._metrics.repeated.inc()
            return LocalReply(answering, request)
        admit(claim.key.limits, claim.spent, len(claim.in_flight), request.choices)
        calls = [
            CallTask(self._pipeline, asked, size)
            for asked in self._asked(dialect, claim, engine.name, asked_for, told, lineage, received_at)
        ]
        answering = SharedCalls(self._pipeline, calls)
        claim.repeats.start(name, answering)
        return LocalReply(answering, request)

    def _asked(
        self,
        dialect: Dialect,
        claim: ClaimState,
        engine: str,
        request: ChatRequest,
        told: Transcript,
        lineage: dict[str, str] | None,
        received_at: float,
    ) -> Iterator[CallSpec]:
        """A request's choices."""
        first = dialect.id_prefix + os.urandom(16).hex()
        kind = kind_of(request, lineage)
        for choice in range(request.choices):
            yield CallSpec(
                call_id=first if choice == 0 else f"{first}.{choice}",
                claim=claim,
                dialect=dialect.name,
                engine=engine,
                request=_of_choice(request, choice),
                told=told,
                received_at=received_at,
                choice=choice,
                lineage=lineage,
                kind=kind,
            )


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
