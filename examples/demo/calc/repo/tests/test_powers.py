from calc import evaluate


def test_a_power_binds_tighter_than_a_product() -> None:
    assert evaluate("2**10") == 1024
    assert evaluate("2 * 3 ** 2") == 18


def test_powers_are_taken_from_the_right() -> None:
    assert evaluate("2 ** 3 ** 2") == 512


def test_a_power_binds_tighter_than_the_sign_before_it() -> None:
    assert evaluate("-2 ** 2") == -4
    assert evaluate("(-2) ** 2") == 4


def test_an_exponent_may_have_a_sign() -> None:
    assert evaluate("2 ** -1") == 0.5
