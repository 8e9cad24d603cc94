"""The words for a field that pydantic or a file's reader refused: what was expected, and what an unknown name perhaps means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_WORDS = {
    "extra_forbidden": "no such field",
    "string_pattern_mismatch": "expected text that matches {pattern}",
}
"""In place of pydantic's own words, by its type of error. Its other messages are clear as they are."""


def first_error(error: ValidationError) -> Any:
    """The error to report: an unknown field first, since it may be a misspelt one, which then is missing."""
    wrong = error.errors()
    return next((one for one in wrong if one["type"] == "extra_forbidden"), wrong[0])


def reason(first: Any) -> str:
    """What was expected, from an error of pydantic."""
    words = _WORDS.get(first["type"])
    return str(first["msg"]).removeprefix("Value error, ") if words is None else words.format(**first.get("ctx", {}))


def meant(name: str, known: Iterable[str]) -> str:
    """The known name that an unknown one perhaps means, or all that there are."""
    known = list(known)
    alike = difflib.get_close_matches(name, known, n=1)
    return f"do you mean {alike[0]}?" if alike else f"there are: {', '.join(known)}"


def fields_at(document: Any, place: Sequence[str | int]) -> Iterable[str]:
    """All fields that there are beside an unknown one at `place` in a document of this type."""
    model = _models(document)[0]
    for name in place[:-1]:
        field = model.model_fields.get(str(name))
        found = [] if field is None else _models(field.annotation)
        model = found[0] if found else model
    return model.model_fields


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models in a type: `Part` in `list[Part] | None`."""
    inner = get_args(annotation)
    if isinstance(annotation, type) and not inner:
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for each in inner for model in _models(each)]
