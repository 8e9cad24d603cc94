"""When a delivery is tried again, for any luck, any endpoint, any delay between tries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumers.webhooks.backoff import DAY_S, PAUSES, pause_s

CHANCES = st.floats(0, 1, exclude_max=True)


@given(st.lists(CHANCES, min_size=60, max_size=60), st.floats(0, 15))
def test_a_delivery_is_tried_for_a_day_and_no_longer(chances: list[float], try_s: float) -> None:
    """`try_s`: what each try takes."""
    failed_for, pauses = 0.0, []
    for tries, chance in enumerate(chances, start=1):
        pause = pause_s(tries, failed_for, 0, chance)
        if pause is None:
            break
        pauses.append(pause)
        failed_for += pause + try_s
    else:
        raise AssertionError("it never gives up")
    assert DAY_S - PAUSES.longest_s * (1 + PAUSES.jitter) <= failed_for <= DAY_S + try_s
    assert 27 <= len(pauses) <= 42


def test_pauses_double_from_5_s_to_an_hour() -> None:
    pauses = [pause_s(tries, 0, 0, 0.5) for tries in range(1, 13)]
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]


@given(st.integers(1, 60), st.floats(0, 2 * DAY_S), st.floats(0, 1e18), CHANCES)
def test_what_an_endpoint_asks_for_is_honoured_as_far_as_the_day_goes(
    tries: int, failed_for: float, asked: float, chance: float
) -> None:
    unasked, pause = pause_s(tries, failed_for, 0, chance), pause_s(tries, failed_for, asked, chance)
    assert (pause is None) == (unasked is None)
    if pause is not None and unasked is not None:
        assert pause >= min(asked, DAY_S - failed_for)
        assert unasked <= pause <= max(DAY_S - failed_for, unasked)
