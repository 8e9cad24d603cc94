import pytest
from calc import evaluate


def test_products_come_before_sums() -> None:
    assert evaluate("1 + 2 * 3") == 7
    assert evaluate("(1 + 2) * 3") == 9


def test_sums_and_products_are_taken_from_the_left() -> None:
    assert evaluate("10 - 4 - 3") == 3
    assert evaluate("24 / 4 / 2") == 3


def test_signs() -> None:
    assert evaluate("-3 + 5") == 2
    assert evaluate("2 * -0.5") == -1


def test_what_is_no_arithmetic_is_refused() -> None:
    for text in ("", "1 +", "(1", "2 3", "len('ab')"):
        with pytest.raises(SyntaxError):
            evaluate(text)
