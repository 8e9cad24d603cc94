"""A run of two policy versions whose curves are known.

Version 1 is published at 0 s, 2 at 150 s. Task `a` (rewards 1 and 0) ends at 61 s and 62 s, task `b` (1 and 1) at 100 s and 130 s, all in
version 1; task `c` at 170 s: one session has reward 1, one failed and has none. Of the failed one five tokens are masked, and four of eight
calls with a history continue an earlier one. Each session has two calls that one conversation makes.
Version 1 sampled all of them, so the sessions of `c` are one version behind. Half an hour later one more session ends, also in version 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tests.analytics.story import NOON, Told, conversation, submitted, yielded
from topics.fleet import PolicyVersion
from topics.types.errors import Kind, SessionError
from topics.types.session import Status
from topics.types.trajectory import Stats

RUN = "grpo"
BEGIN_MS = 1_700_000_040_000
"""The story's second 0, Unix ms: the beginning of a minute."""
SAMPLED, READ = 20, 20 + 50
"""Tokens of a session that the model sampled and read."""
MASKED = Stats(
    2,
    2,
    1,
    60,
    SAMPLED,
    SAMPLED - 5,
    masked_tokens={"filtered_grammar": 5, "side_call": 30},
    drift={"clean": 3, "realign": 1, "edited": 4},
)
LOST = SessionError("run", Kind.INFRA, "lost", "its worker died")


def records(until: float = 1e9) -> list[Told]:
    """Records up to `until` seconds after the beginning, as `tests.analytics.story.write` takes them."""
    shift = (BEGIN_MS - NOON) / 1000
    return [(at + shift, record) for at, record in sorted(_all(), key=lambda one: one[0]) if at <= until]


def _all() -> Iterator[Told]:
    yield 0, PolicyVersion(1)
    yield 150, PolicyVersion(2)
    yield from _task("a", 5, {61: 1.0, 62: 0.0})
    yield from _task("b", 20, {100: 1.0, 130: 1.0})
    yield from _task("c", 140, {170: 1.0, 170.5: None})
    yield from _task("late", 1900, {2000: 0.5})


def _task(task_id: str, at: float, ends: dict[float, float | None]) -> Iterator[Told]:
    yield at, submitted(task_id, len(ends), run=RUN)
    for sample, (end, reward) in enumerate(ends.items()):
        session_id = f"{task_id}.{sample}"
        calls = [
            (each, msgspec.structs.replace(one, policy_version=1, publication=0))
            for each, one in conversation(session_id, end - 20, 2)
        ]
        yield from calls
        status, error = (Status.COMPLETED, None) if reward is not None else (Status.FAILED, LOST)
        more = {} if error is None else {"error": error, "stats": MASKED}
        yield end, yielded(session_id, len(ends), calls, status, reward, run=RUN, **more)


FIRST = (1, BEGIN_MS + 130_000)
SECOND = (2, BEGIN_MS + 170_500)
THIRD = (2, BEGIN_MS + 2_000_000)
"""Step and time of the points by version."""
MINUTES = {number: BEGIN_MS + (number + 1) * 60_000 for number in (1, 2, 33)}
"""Step and time of the points by minute."""


def curve(
    name: str, by_version: Iterable[float | None], by_minute: Iterable[float | None]
) -> dict[str, list[tuple[int, int, float]]]:
    """A curve's points by its full names: step, time, value."""
    versions = [(*at, value) for at, value in zip((FIRST, SECOND, THIRD), by_version, strict=True) if value is not None]
    minutes = [(*at, value) for at, value in zip(MINUTES.items(), by_minute, strict=True) if value is not None]
    return {f"by_version/{name}": versions, f"by_minute/{name}": minutes}


TRUTH = (
    # Minute 1: `a` and the first session of `b`. Minute 2: the second session of `b`, and `c`.
    curve("reward_mean", [3 / 4, 1.0, 0.5], [2 / 3, 1.0, 0.5])
    | curve("reward_std", [3**0.5 / 4, 0.0, 0.0], [2**0.5 / 3, 0.0, 0.0])
    | curve("reward_null_share", [0.0, 0.5, 0.0], [0.0, 1 / 3, 0.0])
    | curve("zero_variance_share", [0.5, 0.0, 0.0], [0.0, 0.5, 0.0])
    | curve("groups", [2, 1, 1], [1, 2, 1])
    | curve("sessions_ended", [4, 2, 1], [3, 3, 1])
    | curve("sessions_completed", [4, 1, 1], [3, 2, 1])
    | curve("sessions_failed", [0, 1, 0], [0, 1, 0])
    | curve("sessions_timed_out", [0, 0, 0], [0, 0, 0])
    | curve("sessions_cancelled", [0, 0, 0], [0, 0, 0])
    | curve("failures_infra", [0, 1, 0], [0, 1, 0])
    | curve("failures_agent", [0, 0, 0], [0, 0, 0])
    | curve("failures_evaluation", [0, 0, 0], [0, 0, 0])
    | curve("failures_budget", [0, 0, 0], [0, 0, 0])
    | curve("failures_input", [0, 0, 0], [0, 0, 0])
    | curve(
        "duration_ms",
        [(56 + 57 + 80 + 110) * 1000 / 4, 30_250.0, 100_000.0],
        [(56 + 57 + 80) * 1000 / 3, (110 + 30 + 30.5) * 1000 / 3, 100_000.0],
    )
    | curve("calls", [8, 4, 2], [6, 6, 2])
    | curve("prompt_tokens", [4 * READ, 2 * READ, READ], [3 * READ, 3 * READ, READ])
    | curve("sampled_tokens", [4 * SAMPLED, 2 * SAMPLED, SAMPLED], [3 * SAMPLED, 3 * SAMPLED, SAMPLED])
    | curve("trainable_tokens", [4 * SAMPLED, 2 * SAMPLED - 5, SAMPLED], [3 * SAMPLED, 3 * SAMPLED - 5, SAMPLED])
    | curve("masked_share", [0.0, 5 / 40, 0.0], [0.0, 5 / 60, 0.0])
    | curve("merge_rate", [None, 0.5, None], [None, 0.5, None])
    | curve("versions_behind", [0.0, 1.0, 1.0], [0.0, 2 / 3, 1.0])
)
"""All curves. Only one session has calls with a history, so `merge_rate` has one point on each axis."""
