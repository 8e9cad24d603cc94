"""Errors that tell people the field, the value and the way out."""

from topics.types.errors import InputError


def test_an_input_error_names_field_value_and_way_out() -> None:
    error = InputError("agent.harness", "nope", "no such harness; there are: pi")
    assert str(error) == "agent.harness: no such harness; there are: pi (got 'nope')"


def test_a_long_value_is_cut() -> None:
    error = InputError("instruction", "x" * 10_000, "too long")
    assert len(error.value) == 118
    assert error.value.endswith("…")
