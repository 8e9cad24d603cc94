"""Errors that tell people the field, the value and the way out."""

from topics.types.errors import InputError


def test_an_input_error_names_field_value_and_way_out() -> None:
    error = InputError("agent.harness", "nope", "no such harness; there are: pi")
    assert str(error) == "agent.harness: no such harness; there are: pi (got 'nope')"


def test_a_long_value_is_cut() -> None:
    error = InputError("instruction", "x" * 10_000, "too long")
    assert len(error.value) == 118
    assert error.value.endswith("…")


def test_a_field_is_named_by_its_place_in_a_larger_document() -> None:
    error = InputError("count", 0, "must be 1 or more; count is too small")
    error.move_to("parts[2].count")
    assert (error.field, str(error)) == (
        "parts[2].count",
        "parts[2].count: must be 1 or more; count is too small (got 0)",
    )
