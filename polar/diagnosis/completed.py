"""Causes that a session completed and yet trains little or nothing."""

from __future__ import annotations

from analytics.health import MEANINGS, Flag
from consumers.building.outcome import NO_CALL
from polar.diagnosis.causes import Cause, Entry
from polar.diagnosis.facts import Facts
from topics.types.session import Phase, SessionState, Status


def _completed(facts: Facts) -> SessionState | None:
    """The session, if it completed."""
    session = facts.session
    is_completed = session is not None and session.phase is Phase.ENDED and session.status is Status.COMPLETED
    return session if is_completed else None


def _was_closed_without_call(facts: Facts) -> bool:
    session = _completed(facts)
    return session is not None and session.reward_reason == NO_CALL


def _has_no_calls(facts: Facts) -> bool:
    session = _completed(facts)
    return session is not None and session.calls == 0 and not _was_closed_without_call(facts)


def _has_no_reward(facts: Facts) -> bool:
    session = _completed(facts)
    return session is not None and session.reward is None and not _was_closed_without_call(facts)


def _trains_nothing(facts: Facts) -> bool:
    session = _completed(facts)
    return session is not None and session.calls > 0 and session.trainable_tokens == 0


def _flagged(flag: Flag, way_out: str) -> Entry:
    """A health flag of a completed session, in its own words."""
    return Entry(
        Cause(flag.value),
        lambda facts: _completed(facts) is not None and flag in (facts.flags or ()),
        MEANINGS[flag],
        way_out,
    )


ENTRIES = (
    Entry(
        Cause.CLOSED_WITHOUT_CALL,
        _was_closed_without_call,
        "It was closed without an answered call, so its reward doesn't count.",
        "Check that the agent uses the base URL and key of `polar session open`; `polar show {name}` lists refused requests. "
        "`polar session close --force` keeps a reward without calls.",
    ),
    Entry(
        Cause.NO_CALLS,
        _has_no_calls,
        "Its harness ended without an answered model call.",
        "Read the harness's log: `polar show {name} --artifact agent_log`. Does it use the base URL in its environment?",
    ),
    Entry(
        Cause.REWARD_NULL,
        _has_no_reward,
        "It completed without a reward: {why_reward}.",
        "Give the task an evaluator, or close an opened session with --reward.",
    ),
    Entry(
        Cause.NOTHING_TRAINED,
        _trains_nothing,
        "It has no trainable token.",
        "`polar show {name}` has the reason of each masked answer, and docs/builder.md explains them.",
    ),
    Entry(
        Cause.RAW_LOGPROBS,
        lambda facts: _completed(facts) is not None and facts.calls.raw > 0,
        "The logprobs of {raw} answers are raw, but temperature or truncation changed the distribution that they were sampled from.",
        "Start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1 without truncation; docs/ratios.md explains why.",
    ),
    Entry(
        Cause.OLD_POLICY,
        lambda facts: _completed(facts) is not None and facts.behind > 0,
        "Its newest answer is of policy version {version}, {behind} behind the published one. A trainer whose limit is lower drops it.",
        "Nothing, if the trainer's limit allows it. Otherwise train on fewer sessions at a time, or raise the limit.",
    ),
    _flagged(Flag.CALL_MISSING, "Look for lost records: `polar doctor` compares the retention of Kafka's topics."),
    _flagged(
        Flag.ANSWER_CUT,
        "Raise `max_tokens` of the agent, or the engine's context. The filter `drop_truncated` leaves such answers out.",
    ),
    _flagged(Flag.AFTER_CLOSE, "Let the agent end before its session is closed."),
    _flagged(Flag.NO_LOGPROBS, "`polar doctor --engine URL` checks whether the engine returns logprobs."),
    _flagged(Flag.REPLAYED, "Give the harness a longer read time-out, if the engine is slow."),
    _flagged(Flag.TRUNCATED_SAMPLING, "Set `sampling` in the task, if the trainer expects untruncated sampling."),
    _flagged(
        Flag.FORKED,
        "Nothing, if the harness edits its history on purpose: each branch is a trace. `polar show {name}` has the tree.",
    ),
    _flagged(Flag.ABANDONED, "Look at the harness's time-outs and at the engine's speed."),
    _flagged(Flag.MOSTLY_MASKED, "`polar show {name}` has the reasons; docs/builder.md explains them."),
    _flagged(Flag.VERSION_UNKNOWN, "Publish the version of the first weights: `polar policy publish VERSION`."),
    Entry(
        Cause.CALLS_UNREAD,
        lambda facts: _completed(facts) is not None and facts.flags is None,
        "It completed with {reward}. Its calls were not read.",
        "`polar why {name}` reads them, and says if something is wrong with them.",
        is_general=True,
    ),
    Entry(
        Cause.COMPLETED,
        lambda facts: _completed(facts) is not None and facts.flags is not None,
        "It completed with {reward}. Nothing is wrong with its calls.",
        "`polar show {name}` prints it.",
        is_general=True,
    ),
)
