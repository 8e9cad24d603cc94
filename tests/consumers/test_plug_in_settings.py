"""The settings of plug-ins are read by the struct that describes them, and a refusal says what the value must be."""

import math
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from consumers.plug_in_settings import Expected, read
from topics.types.errors import InputError


class Known(msgspec.Struct, frozen=True):
    command: Annotated[str, Meta(min_length=1), Expected("must be a command, as text")]
    weight: float = 1.0
    tries: Annotated[int, Meta(ge=1)] = 1
    strict: bool | None = None
    mode: Annotated[Literal["fast", "slow"], Meta(description="how fast it is")] = "fast"
    pair: tuple[int, int] = (0, 1)


def test_settings_get_the_types_of_the_struct() -> None:
    assert read("x", {"command": "a", "weight": 2, "pair": [3, 4]}, Known) == Known("a", 2.0, pair=(3, 4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("a", "x: must be an object with command, weight, tries, strict, mode, pair (got 'a')"),
        ({}, "x.command: must be a command, as text (got None)"),
        ({"command": ""}, "x.command: must be a command, as text (got '')"),
        ({"comand": "a"}, "x.comand: no such setting; there are: command, weight, tries, strict, mode, pair (got 'a')"),
        ({"command": "a", "weight": math.inf}, "x.weight: must be a finite number (got inf)"),
        ({"command": "a", "weight": True}, "x.weight: must be a finite number (got True)"),
        ({"command": "a", "tries": 0}, "x.tries: Expected `int` >= 1 (got 0)"),
        ({"command": "a", "strict": "yes"}, "x.strict: must be true or false (got 'yes')"),
        ({"command": "a", "mode": None}, "x.mode: must be one of fast, slow, as text (got None)"),
        ({"command": "a", "pair": [1]}, "x.pair: Expected `array` of length 2, got 1 (got [1])"),
    ],
)
def test_the_first_bad_setting_is_refused_with_what_it_must_be(settings: object, message: str) -> None:
    with pytest.raises(InputError) as refused:
        read("x", settings, Known)
    assert str(refused.value) == message
