"""The results of a verification, by call, by trace and by engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polar.verification.agreement import Agreement
from polar.verification.distribution import Floats, sampled_logprobs
from polar.verification.plan import Plan, Unscored

FEW, FAR = 8, 10
"""A call with fewer than FEW tokens must differ by FAR limits: in bfloat16 one token in some 10,000 differs by more than 0.1 nats
(`benchmarks/precision.py`)."""
OTHER_WEIGHTS = frozenset({Unscored.WEIGHTS_CHANGED, Unscored.WEIGHTS_UNKNOWN})


@dataclass(frozen=True)
class Comparison:
    """A trace's trained tokens of one engine: recorded against scored logprobs."""

    plan: Plan
    scored: NDArray[np.float32]
    """float32: the scored logprob of each trained token of the trace, in order; NaN: not scored."""
    calls: Mapping[str, Floats]
    """float64: |recorded - scored| of each call's scored tokens, by call id; infinite if the engine gives a token no probability."""

    @property
    def deltas(self) -> Floats:
        """Those of all calls."""
        return np.concatenate([np.empty(0), *self.calls.values()])


def compared(plan: Plan, rows: Floats) -> Comparison:
    """The comparison of a plan's pieces with the plain logprobs `rows`, as `Scorer.rows` returns them."""
    scored = np.full(len(plan.trace.token_ids), np.nan, np.float32)
    calls: dict[str, Floats] = {}
    for piece in plan.pieces:
        at = slice(piece.start, piece.end)
        scored[at] = sampled_logprobs(rows[at], piece.sampling)
        deltas = np.abs(plan.trace.logprobs[at].astype(np.float64) - scored[at])
        calls[piece.call_id] = np.concatenate((calls.get(piece.call_id, np.empty(0)), deltas))
    return Comparison(plan, scored[plan.trace.loss_mask.astype(bool)], calls)


def unscored(plan: Plan) -> Comparison:
    """The comparison of a plan of which nothing is scored."""
    return Comparison(plan, np.full(int(plan.trace.loss_mask.sum()), np.nan, np.float32), {})


@dataclass(frozen=True)
class CallFound:
    """A call whose p99 or mean is above the limit."""

    call_id: str
    tokens: int
    mean: float
    p99: float
    largest: float

    def is_mismatch(self, limit: float) -> bool:
        """Whether its mean is above the limit. Rounding causes that for single tokens at most, so few tokens must differ by far more."""
        return self.mean > (limit if self.tokens >= FEW else FAR * limit)


@dataclass(frozen=True)
class TraceFound:
    """How one trace fared."""

    trace_id: str
    p99: float
    largest: float
    calls: tuple[CallFound, ...]
    """Those whose p99 or mean is above the limit, the highest mean first. Without any, the trace's own p99 is within the limit as well."""

    @property
    def rank(self) -> tuple[float, float, float]:
        """Higher for a worse trace."""
        return self.calls[0].mean if self.calls else 0.0, self.p99, self.largest


@dataclass
class EngineReport:
    """One engine's traces."""

    traces: int = 0
    """Traces of which at least a token was scored."""
    worst: TraceFound | None = None
    """The trace of the highest rank."""
    over: list[TraceFound] = field(default_factory=list)
    """Traces with calls over the limit."""
    unscored: Counter[str] = field(default_factory=Counter)
    """Trained tokens that weren't scored, by reason."""
    _deltas: list[Floats] = field(default_factory=list)

    def add(self, comparison: Comparison, limit: float) -> Agreement | None:
        """Take in a trace; its agreement, or None if no token of it was scored."""
        self.unscored.update(comparison.plan.unscored)
        deltas = comparison.deltas
        if not len(deltas):
            return None
        agreement = Agreement.of(deltas)
        found = TraceFound(
            comparison.plan.trace.trace.trace_id, agreement.p99, agreement.largest, _over(comparison, limit)
        )
        self.traces += 1
        self._deltas.append(deltas)
        if self.worst is None or found.rank > self.worst.rank:
            self.worst = found
        if found.calls:
            self.over.append(found)
        return agreement

    @property
    def agreement(self) -> Agreement | None:
        """Over all scored tokens; None: there are none."""
        return Agreement.of(np.concatenate(self._deltas)) if self._deltas else None

    def mismatches(self, limit: float) -> int:
        """Number of calls that differ by more than rounding."""
        return sum(call.is_mismatch(limit) for trace in self.over for call in trace.calls)


def _over(comparison: Comparison, limit: float) -> tuple[CallFound, ...]:
    agreements = [(call_id, Agreement.of(deltas)) for call_id, deltas in comparison.calls.items()]
    over = [
        CallFound(call_id, a.tokens, a.mean, a.p99, a.largest)
        for call_id, a in agreements
        if max(a.p99, a.mean) > limit
    ]
    return tuple(sorted(over, key=lambda call: call.mean, reverse=True))


@dataclass
class Report:
    """The result of a run."""

    limit: float
    sessions: int = 0
    engines: dict[str, EngineReport] = field(default_factory=dict)
    unrecorded: int = 0
    """Traces whose result Kafka didn't acknowledge."""
    remaining: int = 0
    """Traces that a stop left out."""

    def of_engine(self, name: str) -> EngineReport:
        return self.engines.setdefault(name, EngineReport())

    @property
    def is_faithful(self) -> bool:
        """Something was scored, 99 of 100 tokens of every engine differ by no more than the limit, and so does every call on average."""
        scored = [each.agreement for each in self.engines.values() if each.agreement is not None]
        return (
            bool(scored)
            and all(each.p99 <= self.limit for each in scored)
            and not any(each.mismatches(self.limit) for each in self.engines.values())
        )

    @property
    def is_outdated(self) -> bool:
        """Nothing was scored, and only because the engines serve other weights than those that sampled."""
        reasons = {reason for each in self.engines.values() for reason in each.unscored}
        return (
            all(each.agreement is None for each in self.engines.values()) and bool(reasons) and reasons <= OTHER_WEIGHTS
        )
