"""Which trained tokens of a trace an engine can score again exactly, and the reason for each that it can't.

Pure. A score says something about a token only if the engine serves the weights that sampled it, reads the prompt as ids alone, and the
recorded logprob is of a distribution that follows from the plain one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from polar.verification.distribution import ALL, alternatives, has_plain_logprobs
from topics.types.completion import Sampling
from topics.types.trajectory import ExpandedTrace, Span


class Unscored(StrEnum):
    """Why a trained token isn't scored. If several reasons hold, the first in this order counts."""

    ENGINE = "engine"
    """No engine of that name is configured here, or its servers can't score prompts: only vLLM's can."""
    OTHER_MODEL = "other_model"
    """The engine serves another model than the one that sampled it."""
    WEIGHTS_CHANGED = "weights_changed"
    """The engine serves other weights now; or they, or the fleet's state, changed while it scored."""
    WEIGHTS_UNKNOWN = "weights_unknown"
    """The version that sampled it, or the one that the engine serves, is unknown, and the other isn't."""
    IMAGES = "images"
    """Its prompt holds images or sounds, where the ids are only placeholders."""
    GRAMMAR = "grammar"
    """A grammar limited the choice."""
    LOGPROBS_MODE = "logprobs_mode"
    """It is unknown whether its logprob is raw or processed, as in older records."""
    SAMPLING_UNKNOWN = "sampling_unknown"
    """Its logprob is processed, and one of the settings that it depends on is unknown: the engine's own default counted."""
    PENALTIES = "penalties"
    """Its logprob is after penalties for repeated tokens."""
    TOO_LONG = "too_long"
    """It stands beyond the tokens that one request may hold, or the engine refuses so long a prompt."""
    VOCABULARY = "vocabulary"
    """Its distribution needs the logprobs of more tokens than the engine returns, or than fit into one answer."""
    FAILED = "failed"
    """The engine gave no usable answer, or Kafka didn't tell whether weights changed meanwhile."""


@dataclass(frozen=True)
class Weights:
    """The weights that an engine serves now; None: unknown."""

    version: int | None = None
    publication: int | None = None


@dataclass(frozen=True)
class Served:
    """The model and the weights that an engine serves now."""

    model: str
    weights: Weights


@dataclass(frozen=True)
class Piece:
    """Trained tokens `[start, end)` of a trace, sampled by one call, that can be scored."""

    call_id: str
    start: int
    end: int
    sampling: Sampling
    """How the recorded logprobs follow from the plain distribution; `Sampling()`: they are the plain ones."""


@dataclass(frozen=True)
class Plan:
    """One trace at one engine."""

    engine: str
    trace: ExpandedTrace
    pieces: tuple[Piece, ...]
    """Ascending."""
    unscored: Mapping[str, int]
    """The engine's other trained tokens of the trace, by reason."""

    @property
    def length(self) -> int:
        """Tokens of the prompt that the engine must score."""
        return self.pieces[-1].end if self.pieces else 0

    @property
    def alternatives(self) -> int:
        """The likeliest tokens at each place that are needed; -1: the whole vocabulary."""
        needed = {alternatives(piece.sampling) for piece in self.pieces}
        return ALL if ALL in needed else max(needed, default=0)

    def within(self, most: int) -> Plan:
        """The plan without the pieces whose distribution needs more than `most` alternatives."""
        kept = tuple(piece for piece in self.pieces if 0 <= alternatives(piece.sampling) <= most)
        return replace(self, pieces=kept, unscored=self._more_unscored(Unscored.VOCABULARY, kept))

    def refused(self, reason: Unscored) -> Plan:
        """The plan after the engine scored none of it."""
        return replace(self, pieces=(), unscored=self._more_unscored(reason, ()))

    def _more_unscored(self, reason: Unscored, kept: Iterable[Piece]) -> Mapping[str, int]:
        lost = sum(piece.end - piece.start for piece in self.pieces) - sum(piece.end - piece.start for piece in kept)
        return Counter(self.unscored) + Counter({reason.value: lost})


def plans(trace: ExpandedTrace, served: Mapping[str, Served], longest: int) -> list[Plan]:
    """A plan for each engine that sampled trained tokens of a trace; `longest`: tokens that one request may hold.

    `served`: the engines that can score, by name.
    """
    pieces: dict[str, list[Piece]] = {}
    unscored: dict[str, Counter[str]] = {}
    for span in trace.spans:
        engine = span.call.engine
        fit, left_out = pieces.setdefault(engine, []), unscored.setdefault(engine, Counter())
        end = min(span.end, longest)
        reason = obstacle(span, served.get(engine)) or (Unscored.TOO_LONG if end <= span.start else None)
        if reason is not None:
            left_out[reason.value] += span.end - span.start
            continue
        fit.append(Piece(span.call.call_id, span.start, end, _transform(span)))
        if span.end > end:
            left_out[Unscored.TOO_LONG.value] += span.end - end
    return [Plan(engine, trace, tuple(fit), unscored[engine]) for engine, fit in pieces.items()]


def obstacle(span: Span, served: Served | None) -> Unscored | None:
    """Why a span can't be scored by what serves its engine's name now; None: it can."""
    call, sampling = span.call, span.call.sampling
    if served is None:
        return Unscored.ENGINE
    if call.model_served not in (None, served.model):
        return Unscored.OTHER_MODEL
    if (changed := _weights_differ(span, served.weights)) is not None:
        return changed
    if call.media:
        return Unscored.IMAGES
    if sampling.grammar:
        return Unscored.GRAMMAR
    if call.logprobs_mode not in ("raw", "processed"):
        return Unscored.LOGPROBS_MODE
    if call.logprobs_mode == "raw":
        return None
    if not sampling.known:
        return Unscored.SAMPLING_UNKNOWN
    return Unscored.PENALTIES if sampling.penalised else None


def _weights_differ(span: Span, weights: Weights) -> Unscored | None:
    if None not in (span.publication, weights.publication) and span.publication != weights.publication:
        return Unscored.WEIGHTS_CHANGED
    if span.policy_version == weights.version:
        return None
    known = None not in (span.policy_version, weights.version)
    return Unscored.WEIGHTS_CHANGED if known else Unscored.WEIGHTS_UNKNOWN


def _transform(span: Span) -> Sampling:
    """vLLM takes raw logprobs before temperature and truncation."""
    sampling = span.call.sampling
    return Sampling() if span.call.logprobs_mode == "raw" or has_plain_logprobs(sampling) else sampling
