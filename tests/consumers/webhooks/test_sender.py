"""When a delivery is attempted again, for any jitter, any endpoint, any duration of an attempt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumers.webhooks.client import Outcome, Result
from consumers.webhooks.sender import DAY_S, PAUSES, next_record, pause_s
from topics.types.session import Status
from topics.webhooks import Owed, Settled

BEGAN_MS = 1_700_000_000_000
CHANCES = st.floats(0, 1, exclude_max=True)
FAILED = Result(Outcome.FAILED, "it answered 500")


@given(st.lists(CHANCES, min_size=60, max_size=60), st.integers(0, 15_000))
def test_failures_are_attempted_again_for_a_day_then_given_up_and_a_success_settles(
    chances: list[float], attempt_ms: int
) -> None:
    owed, now_ms = Owed("t1", "https://x.example", 0, [1.0], [Status.COMPLETED]), BEGAN_MS
    for tries, chance in enumerate(chances, start=1):
        assert next_record(owed, Result(Outcome.DELIVERED), now_ms, chance) == Settled("t1", "delivered", tries)
        following = next_record(owed, FAILED, now_ms, chance)
        if isinstance(following, Settled):
            break
        assert (following.tries, following.failed_ms, following.why) == (tries, BEGAN_MS, "it answered 500")
        assert following.due_ms > now_ms
        owed, now_ms = following, following.due_ms + attempt_ms
    assert following == Settled("t1", "given_up", tries)
    assert DAY_S - PAUSES.longest_s * (1 + PAUSES.jitter) <= (now_ms - BEGAN_MS) / 1000 <= DAY_S + attempt_ms / 1000
    assert 28 <= tries <= 43


def test_pauses_double_from_5_s_to_an_hour() -> None:
    pauses = [pause_s(tries, 0, 0, 0.5) for tries in range(1, 13)]
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]


@given(st.integers(1, 60), st.floats(0, 2 * DAY_S), st.floats(0, 1e18), CHANCES)
def test_retry_after_is_honoured_within_the_day(
    tries: int, failed_for: float, retry_after: float, chance: float
) -> None:
    usual, pause = pause_s(tries, failed_for, 0, chance), pause_s(tries, failed_for, retry_after, chance)
    assert (pause is None) == (usual is None)
    if pause is not None and usual is not None:
        assert pause >= min(retry_after, DAY_S - failed_for)
        assert usual <= pause <= max(DAY_S - failed_for, usual)
