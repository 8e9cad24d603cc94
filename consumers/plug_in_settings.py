"""Reads a task's settings of a plug-in by the struct that describes them, from which docs/task.md is made, too.

What no type says is checked by the struct's `__post_init__`, or by the plug-in's constructor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from topics.types.errors import InputError

_PLAIN = {
    bool: "must be true or false",
    int: "must be a whole number",
    float: "must be a finite number",
    str: "must be text",
}
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class Expected:
    """Belongs into a field's `Annotated` type, where msgspec's own words for a bad value aren't clear."""

    reason: str
    """Why a bad or missing value is refused: "must be …"."""


def read(place: str, settings: object, known: type[S], unknown: str = "no such setting") -> S:
    """The settings that a task has at `place`. `unknown`: the words for a name that the struct lacks.

    Raises InputError for the first unknown, missing or bad one. Infinite numbers are bad ones.
    """
    fields = {each.name: each for each in msgspec.structs.fields(known)}
    if not isinstance(settings, Mapping):
        raise InputError(place, settings, f"must be an object with {', '.join(fields)}")
    for name, value in settings.items():
        if name not in fields:
            raise InputError(f"{place}.{name}", value, f"{unknown}; there are: {', '.join(fields) or 'none'}")
    for name, each in fields.items():
        if each.required and name not in settings:
            raise InputError(f"{place}.{name}", None, _expected(each.type) or "is needed")
    return known(**{name: _value(f"{place}.{name}", value, fields[name].type) for name, value in settings.items()})


def _value(field: str, value: object, hint: Any) -> object:
    """The value as its type. Raises InputError."""
    try:
        found = msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise InputError(field, value, _expected(hint) or str(error)) from None
    if isinstance(found, float) and not math.isfinite(found):
        raise InputError(field, value, _expected(hint) or "must be a finite number")
    return found


def _expected(hint: Any) -> str | None:
    """A description of the type's values for an error; None where msgspec's own message is clear."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return next(filter(None, map(_expected, arguments)), None)
    if origin is Annotated:
        described = (each.reason for each in hint.__metadata__ if isinstance(each, Expected))
        return next(described, None) or (_expected(arguments[0]) if get_origin(arguments[0]) is Literal else None)
    if origin is Literal:
        return f"must be one of {', '.join(map(str, arguments))}, as text"
    return _PLAIN.get(hint)
