"""The settings of evaluators: a task's `evaluator.config`, and the types that several evaluators have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from consumers import plug_in_settings
from consumers.plug_in_settings import Expected
from topics.types.errors import InputError

PLACE = "evaluator.config"

Config = Mapping[str, object]
CommandText = Annotated[str, Meta(min_length=1), Expected("must be a command, as text")]
Seconds = Annotated[float, Meta(gt=0), Expected("must be a number of seconds, more than 0")]
PROTECTED = "must be false, or a list of paths relative to the workspace, without .."
ProtectedPaths = Annotated[
    list[str] | Literal[False],
    Expected(PROTECTED),
]
S = TypeVar("S", bound=msgspec.Struct)


def read(config: object, known: type[S], place: str = PLACE) -> S:
    """The settings as the struct that describes them. Raises InputError for the first unknown, missing or bad one."""
    return plug_in_settings.read(place, config, known)


def refused(name: str, value: object, reason: str) -> InputError:
    return InputError(f"{PLACE}.{name}", value, reason)
