"""From a parsed request to the calls that answer it: restored turns, imposed sampling, limits, lineage and kind.

Nothing is awaited here, between a claim that is open and the calls that are in flight on it, so that a key that closes finds its calls.
Everything that needs the engine, Kafka or time is the pipeline's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from msgspec.structs import replace

from proxy.call import CallTask, Pipeline
from proxy.call_kinds import BESIDE_WORK, MAIN, Kind, kind_of
from proxy.capture import CallSpec
from proxy.chat import ChatRequest
from proxy.dialects.base import Dialect
from proxy.lineage import client_of, lineage_of
from proxy.metrics import ProxyMetrics
from proxy.session.claim_state import ClaimState
from proxy.session.history import Transcript
from proxy.session.limits import admit
from proxy.session.repeats import content_digest, is_retry
from proxy.session.reply import SharedCalls, nothing
from proxy.session.seen import question_of
from topics.environment.keys import KeyClaims, Limits
from topics.types.completion import FREE, UNKNOWN, Sampling, truncates

FACTS = ("truncated", "grammar", "grammar_source", "stop", "logit_bias")
"""Fields of Sampling that the record alone has; a key can impose the others."""
SAMPLING = tuple(name for name in Sampling.__struct_fields__ if name not in FACTS)


class Intake:
    """Makes calls of requests."""

    def __init__(self, pipeline: Pipeline, metrics: ProxyMetrics) -> None:
        self._pipeline = pipeline
        self._metrics = metrics

    def calls_for(
        self,
        dialect: Dialect,
        claim: ClaimState,
        request: ChatRequest,
        headers: Mapping[str, str],
        *,
        limits: Limits,
        size: int,
        received_at: float,
        is_forwarded: bool,
    ) -> SharedCalls:
        """The calls that answer a request of `size` bytes: started now, or those of a request that it repeats.

        `limits` are those of the key that the request brings: a claim may have several keys (protocol 36). `is_forwarded`: another
        proxy sent the request, and an answer that reaches this proxy may be lost on its way to the harness.
        Raises RefusalError for what the claim may not have.
        """
        lineage = lineage_of(headers)
        engine = self._pipeline.engines.for_model(request.model)
        restored, transcript = claim.restore(request, engine.name if engine.owns_prompts else None)
        request = imposed(restored, claim.key, engine.unasked_grammar)
        digest = content_digest(dialect.name, request, transcript, lineage)
        shared: SharedCalls | None = claim.repeats.find(digest, is_retry=is_retry(lineage))
        if shared is not None:
            self._metrics.repeated.inc()
            if is_forwarded:
                shared.on_delivered = nothing
            return shared
        admit(limits, claim.usage, len(claim.in_flight), request.choices)
        first_id = dialect.id_prefix + os.urandom(16).hex()
        kind = _kind(claim, request, transcript, lineage)
        question = question_of(transcript, lineage)
        seen = claim.seen.asked_again(question, received_at)
        # A client that counts a retry didn't get the answer, whatever was written to its connection.
        rejects = [] if is_retry(lineage) else seen
        client = client_of(headers)
        specs = [
            CallSpec(
                call_id=first_id if choice == 0 else f"{first_id}.{choice}",
                claim=claim,
                dialect=dialect.name,
                engine=engine.name,
                request=_of_choice(request, choice),
                transcript=transcript,
                received_at=received_at,
                choice=choice,
                lineage=lineage,
                kind=kind,
                rejects=rejects if choice == 0 else [],
                client=client,
            )
            for choice in range(request.choices)
        ]
        calls = SharedCalls(self._pipeline, [CallTask(self._pipeline, spec, size) for spec in specs])
        if not is_forwarded:
            call_ids = [spec.call_id for spec in specs]
            calls.on_delivered = lambda _: claim.seen.add(question, call_ids, time.time())
        claim.repeats.add(digest, calls)
        return calls


def _kind(claim: ClaimState, request: ChatRequest, transcript: Transcript, lineage: Mapping[str, str] | None) -> Kind:
    """The key's kind, or a rule's; what no rule knows is main work, unless it is beside the claim's work."""
    if claim.key.kind is not None:
        return Kind(claim.key.kind, "key")
    kind = kind_of(request, lineage)
    return BESIDE_WORK if kind == MAIN and claim.is_beside_work(request, transcript, lineage) else kind


def imposed(request: ChatRequest, key: KeyClaims, unasked_grammar: bool | None) -> ChatRequest:
    """The request with the key's sampling in place of the harness's, and the record's facts about it.

    `unasked_grammar`: the engine's.
    """
    values = {name: key.sampling.get(name, getattr(request.sampling, name)) for name in SAMPLING}
    source = _grammar_source(request, unasked_grammar)
    sampling = Sampling(
        **values,
        truncated=truncates(values["top_p"], values["top_k"], values["min_p"]),
        grammar=source not in (FREE, UNKNOWN),
        grammar_source=source,
        stop=request.stop,
    )
    return replace(request, sampling=sampling)


def _grammar_source(request: ChatRequest, unasked: bool | None) -> str:
    requested = request.grammar_source
    if requested is not None:
        return requested
    if unasked is None:
        return UNKNOWN
    if unasked:
        # Some of these engines constrain calls without tools also (vLLM with Mistral's tokenizer).
        return "engine" if request.may_call_tools else UNKNOWN
    return FREE


def _of_choice(request: ChatRequest, choice: int) -> ChatRequest:
    """The request with a seed of its own for each choice, as in vLLM: with one seed all choices would be equal."""
    seed = request.sampling.seed
    if choice == 0 or seed is None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=seed + choice))
