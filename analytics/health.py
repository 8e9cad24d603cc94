"""Health flags: what a person should look at in a session before it trains anything. They are decided here alone.

Pure, over a session's row, its trajectory, and single calls. A flag of a call names the call; a flag of the session names none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

from topics.types.building import TRAINED
from topics.types.completion import CallOutcome, Completion
from topics.types.session import Phase, SessionState, Stage
from topics.types.token_tree import Branch, Masked
from topics.types.trajectory import Call, Trajectory

MASKED_SHARE = 0.5
"""Above this share of masked tokens a session is `mostly_masked`."""
GAP = "log_gap"
"""The error code of a session whose calls have left the log, or that a broken disk has lost."""
FORKS = frozenset({Branch.FORK, Branch.PARALLEL, Branch.EDITED_HISTORY, Branch.STRIPPED, Branch.END_OF_TURN})
"""Branches of calls that leave the line of the calls before them. The others begin a new line, or repeat a request."""


class Flag(StrEnum):
    CALL_MISSING = "call_missing"
    ANSWER_CUT = "answer_cut"
    AFTER_CLOSE = "after_close"
    NO_LOGPROBS = "no_logprobs"
    REPLAYED = "replayed"
    TRUNCATED_SAMPLING = "truncated_sampling"
    FORKED = "forked"
    ABANDONED = "abandoned"
    MOSTLY_MASKED = "mostly_masked"
    REWARD_NULL = "reward_null"
    EVALUATOR_FAILED = "evaluator_failed"
    VERSION_UNKNOWN = "version_unknown"


MEANINGS = {
    Flag.CALL_MISSING: "A call that another call continues isn't on the log, so a part of the session can't be trained.",
    Flag.ANSWER_CUT: "An answer ended at a length limit, not at its own end.",
    Flag.AFTER_CLOSE: "A call arrived after the session was closed; it is stored and never trained.",
    Flag.NO_LOGPROBS: "The engine returned no usable logprobs for an answer, so its tokens aren't trained.",
    Flag.REPLAYED: "The harness sent an answered request again, so only one of the answers was used.",
    Flag.TRUNCATED_SAMPLING: "An answer was sampled with top_p, top_k or min_p, which the trainer's logprobs must account for.",
    Flag.FORKED: "A call doesn't continue the calls before it as they were: the conversation has several branches.",
    Flag.ABANDONED: "The harness hung up on a call, or its key was closed, before the answer came.",
    Flag.MOSTLY_MASKED: f"More than {MASKED_SHARE:.0%} of the tokens that were sampled for the work are trained nowhere.",
    Flag.REWARD_NULL: "The session has ended without a reward.",
    Flag.EVALUATOR_FAILED: "The evaluation failed, so the reward isn't known.",
    Flag.VERSION_UNKNOWN: "The version of the weights that sampled an answer isn't known, so neither is its staleness.",
}
"""A sentence for each flag."""


def of_call(call: Call | Completion) -> list[Flag]:
    """The flags that a single call shows, before and after its trajectory is built."""
    if call.outcome == CallOutcome.ABANDONED:
        return [Flag.ABANDONED]
    if call.outcome != CallOutcome.ANSWERED or call.kind not in TRAINED:
        return []
    found = {
        Flag.ANSWER_CUT: call.finish_reason == "length",
        Flag.TRUNCATED_SAMPLING: call.sampling.truncated,
        Flag.VERSION_UNKNOWN: call.policy_version is None,
    }
    return [flag for flag, holds in found.items() if holds]


def of_row(row: SessionState) -> list[Flag]:
    """The flags that a session's row shows, whether or not its trajectory is known."""
    found = {
        Flag.REWARD_NULL: row.phase is Phase.ENDED and row.reward is None,
        Flag.EVALUATOR_FAILED: row.evaluation_error is not None,
    }
    return [flag for flag, holds in found.items() if holds]


def of_trajectory(trajectory: Trajectory, late: Collection[str] = ()) -> dict[Flag, list[str]]:
    """Call ids by flag, in log order. A flag without call ids is one of the session. `late`: ids of known late calls."""
    stats = trajectory.stats
    found: dict[Flag, list[str]] = {}
    for call in trajectory.calls:
        for flag in (*of_call(call), *_of_place(call)):
            found.setdefault(flag, []).append(call.call_id)
    silent = {node.call for node in trajectory.nodes if node.masked == Masked.INVALID_LOGPROBS}
    if Masked.INVALID_LOGPROBS in stats.masked_tokens:
        found[Flag.NO_LOGPROBS] = [call.call_id for n, call in enumerate(trajectory.calls) if n in silent]
    if trajectory.error is not None and trajectory.error.code == GAP:
        found.setdefault(Flag.CALL_MISSING, [])
    if trajectory.error is not None and trajectory.error.stage == Stage.EVALUATE:
        found[Flag.EVALUATOR_FAILED] = []
    if trajectory.reward is None:
        found[Flag.REWARD_NULL] = []
    if stats.late_calls or late:
        found[Flag.AFTER_CLOSE] = list(late)
    masked = sum(tokens for reason, tokens in stats.masked_tokens.items() if reason != Masked.SIDE_CALL)
    if masked > MASKED_SHARE * (masked + stats.trainable_tokens):
        found[Flag.MOSTLY_MASKED] = []
    return found


def of_session(
    row: SessionState, trajectory: Trajectory | None, *, calls: Iterable[Call] = (), late: Collection[str] = ()
) -> dict[Flag, list[str]]:
    """All flags of a session with its row, in the order of `Flag`. `calls`: its calls so far; they count until its trajectory is out."""
    found: dict[Flag, list[str]] = {}
    if trajectory is not None:
        found = of_trajectory(trajectory, late)
    else:
        for call in calls:
            for flag in of_call(call):
                found.setdefault(flag, []).append(call.call_id)
    found |= {flag: [] for flag in of_row(row)}
    return {flag: found[flag] for flag in Flag if flag in found}


def _of_place(call: Call) -> list[Flag]:
    """The flags of a call's place among the others."""
    if call.branch == Branch.BASE_MISSING:
        return [Flag.CALL_MISSING]
    if call.kind not in TRAINED:
        return []
    return [Flag.REPLAYED] if call.branch == Branch.RETRY else [Flag.FORKED] if call.branch in FORKS else []
