"""A session for each health flag, each made by the real builder or coordinator; a token is a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from analytics.health import Flag
from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from consumers.building.outcome import GONE, failed
from tests.consumers.coordinator.bench import Bench, submitted
from tests.consumers.token_tree.transcripts import Log, build_record
from topics.events import Evaluated
from topics.types.completion import CallOutcome, Sampling
from topics.types.errors import Kind, SessionError
from topics.types.trajectory import Trajectory

GOOD: dict[str, Any] = {"policy_version": 7}
"""Values of a call without a flag."""


def good_calls() -> Log:
    """Two calls, of which the second continues the first."""
    log = Log()
    log.call("c1", "fix it", "look around", **GOOD)
    log.call("c2", "fix it look around result", "done", **GOOD)
    return log


def good() -> Trajectory:
    return good_calls().build()


def _second(**fields: Any) -> Trajectory:
    """The good session with other fields in its second call."""
    log = Log()
    log.call("c1", "fix it", "look around", **GOOD)
    log.call("c2", "fix it look around result", "done", **{**GOOD, **fields})
    return log.build()


def _call_missing() -> Trajectory:
    return failed(build_record(), "log_gap", GONE, 2)


def _after_close() -> Trajectory:
    return PrefixMerging().build(BuiltFrom(build_record(), good_calls().calls, late_calls=1))


def _no_logprobs() -> Trajectory:
    return _second(logprobs=b"")


def _replayed() -> Trajectory:
    log = good_calls()
    log.call("c3", "fix it look around result", "done again", **GOOD)
    return log.build()


def _forked() -> Trajectory:
    log = good_calls()
    log.call("c3", "fix it look around other", "else", **GOOD)
    return log.build()


def _abandoned() -> Trajectory:
    log = good_calls()
    log.call("c3", "fix it look around result done more", "", outcome=CallOutcome.ABANDONED, finish_reason=None)
    return log.build()


def _mostly_masked() -> Trajectory:
    log = Log()
    log.call("c1", "fix it", "look around everywhere for long", prompt_doubt="the engine read more", **GOOD)
    log.call("c2", "another", "done", **GOOD)
    return log.build()


def _evaluator_failed() -> Trajectory:
    """As the coordinator ends a session whose evaluator raised."""
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    raised = SessionError("evaluate", Kind.EVALUATION, "evaluator_raised", "no")
    bench.give(Evaluated("f", "t.0", 1, "e1", error=raised))
    build = replace(bench.builds["t.0"], claim_id="claim")
    return PrefixMerging().build(BuiltFrom(build, good_calls().calls))


PROVOKED: dict[Flag, Callable[[], Trajectory]] = {
    Flag.CALL_MISSING: _call_missing,
    Flag.ANSWER_CUT: lambda: _second(finish_reason="length"),
    Flag.AFTER_CLOSE: _after_close,
    Flag.NO_LOGPROBS: _no_logprobs,
    Flag.REPLAYED: _replayed,
    Flag.TRUNCATED_SAMPLING: lambda: _second(sampling=Sampling(top_p=0.9, truncated=True)),
    Flag.FORKED: _forked,
    Flag.ABANDONED: _abandoned,
    Flag.MOSTLY_MASKED: _mostly_masked,
    Flag.REWARD_NULL: lambda: good_calls().build(reward=None),
    Flag.EVALUATOR_FAILED: _evaluator_failed,
    Flag.VERSION_UNKNOWN: lambda: _second(policy_version=None),
}
"""A trajectory that shows each flag."""
IMPLIED = {Flag.CALL_MISSING: {Flag.REWARD_NULL}, Flag.EVALUATOR_FAILED: {Flag.REWARD_NULL}}
"""Flags that such a session has beside its own."""
FLAGGED_CALLS = {
    Flag.ANSWER_CUT: ["c2"], Flag.NO_LOGPROBS: ["c2"], Flag.REPLAYED: ["c3"], Flag.TRUNCATED_SAMPLING: ["c2"],
    Flag.FORKED: ["c3"], Flag.ABANDONED: ["c3"], Flag.VERSION_UNKNOWN: ["c2"],
}  # fmt: skip
"""The calls that a flag names; none for the others."""
