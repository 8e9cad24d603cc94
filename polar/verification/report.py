"""What a verification found: for each trace at one engine, and for each engine over all of its traces."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polar.verification.agreement import Agreement
from polar.verification.distribution import Floats, sampled_logprobs
from polar.verification.plan import Plan


@dataclass(frozen=True)
class Comparison:
    """A trace's trained tokens of one engine: recorded against scored logprobs."""

    plan: Plan
    scored: NDArray[np.float32]
    """float32: the scored logprob of each trained token of the trace, in order; NaN: not scored."""

    @property
    def deltas(self) -> Floats:
        """float64: |recorded - scored| of the scored tokens; infinite if the engine gives a token no probability."""
        trained = self.plan.trace.loss_mask.astype(bool)
        differences = np.abs(self.plan.trace.logprobs[trained].astype(np.float64) - self.scored)
        found: Floats = differences[~np.isnan(self.scored)]
        return found


def compared(plan: Plan, rows: Floats) -> Comparison:
    """The comparison of a plan's pieces with the plain logprobs `rows`, as `Scorer.rows` returns them."""
    scored = np.full(len(plan.trace.token_ids), np.nan, np.float32)
    for piece in plan.pieces:
        at = slice(piece.start, piece.end)
        scored[at] = sampled_logprobs(rows[at], piece.sampling)
    return Comparison(plan, scored[plan.trace.loss_mask.astype(bool)])


def unscored(plan: Plan) -> Comparison:
    """The comparison of a plan of which nothing is scored."""
    return Comparison(plan, np.full(int(plan.trace.loss_mask.sum()), np.nan, np.float32))


@dataclass(frozen=True)
class TraceFound:
    """A trace whose p99 is above the limit."""

    trace_id: str
    p99: float
    largest: float


@dataclass
class EngineReport:
    """One engine's traces."""

    traces: int = 0
    """Traces of which at least a token was scored."""
    worst: TraceFound | None = None
    """The trace with the highest p99."""
    over: list[TraceFound] = field(default_factory=list)
    """Traces whose p99 is above the limit."""
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
        found = TraceFound(comparison.plan.trace.trace.trace_id, agreement.p99, agreement.largest)
        self.traces += 1
        self._deltas.append(deltas)
        if self.worst is None or (found.p99, found.largest) > (self.worst.p99, self.worst.largest):
            self.worst = found
        if agreement.p99 > limit:
            self.over.append(found)
        return agreement

    @property
    def agreement(self) -> Agreement | None:
        """Over all scored tokens; None: there are none."""
        return Agreement.of(np.concatenate(self._deltas)) if self._deltas else None


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
        """Something was scored, and 99 of 100 tokens of every engine differ by no more than the limit."""
        scored = [each.agreement for each in self.engines.values() if each.agreement is not None]
        return bool(scored) and all(each.p99 <= self.limit for each in scored)
