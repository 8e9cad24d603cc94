from intervals import length, merge


def test_disjoint_intervals_stay() -> None:
    assert merge([(5, 7), (1, 3)]) == [(1, 3), (5, 7)]


def test_overlapping_intervals_become_one() -> None:
    assert merge([(1, 4), (3, 6)]) == [(1, 6)]


def test_touching_intervals_become_one() -> None:
    assert merge([(1, 3), (3, 6)]) == [(1, 6)]


def test_an_interval_inside_another_adds_nothing() -> None:
    assert merge([(1, 9), (2, 4)]) == [(1, 9)]
    assert length([(1, 9), (2, 4)]) == 8
