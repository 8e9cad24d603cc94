"""Errors that tell people the field, the value and the way out."""

import pickle

from topics.types.errors import InputError


class DetailedError(InputError):
    """As errors of modules above: with more fields."""

    def __init__(self, detail: str) -> None:
        super().__init__("field", 1, "reason")
        self.detail = detail


def test_an_input_error_passes_to_another_process() -> None:
    moved = InputError("count", 0, "too small")
    moved.move_to("parts[2].count")
    for error in (moved, DetailedError("more")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


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


def test_a_value_that_is_nested_too_deeply_has_no_repr() -> None:
    value: list[object] = []
    for _ in range(10_000):
        value = [value]
    assert str(InputError("url", value, "must be a URL")) == "url: must be a URL (got a list that is nested too deeply)"
