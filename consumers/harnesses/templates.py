"""Templates of a preset: values of JSON or TOML whose texts and keys have placeholders like `{model}`.

A text that is one placeholder becomes the value itself, also a number or a list; in a longer text the value is written out. `{{` and `}}`
stand for braces. Nothing is computed: a placeholder is a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """`template` with the value of each placeholder. All are in `values` (`check`)."""
    if isinstance(template, Mapping):
        return {str(filled(key, values)): filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(each, values) for each in template]
    if not isinstance(template, str):
        return template
    whole = _PLACEHOLDER.fullmatch(template)
    if whole is not None and whole[1] is not None:
        return values[whole[1]]
    return _PLACEHOLDER.sub(lambda found: found[0][0] if found[1] is None else str(values[found[1]]), template)


def check(template: Any, names: Iterable[str]) -> None:
    """Raises ValueError for a placeholder that isn't in `names`, and for a brace that is neither doubled nor part of a placeholder."""
    known = sorted(names)
    for text in _texts(template):
        for found in _PLACEHOLDER.finditer(text):
            if len(found[0]) == 1:
                raise ValueError(f"{text!r} has a brace that belongs to no placeholder; write it twice: {found[0] * 2}")
            if found[1] is not None and found[1] not in known:
                raise ValueError(
                    f"{text!r} has no such placeholder; there are: {', '.join(known)}. Write a brace twice if it is no placeholder"
                )


def _texts(template: Any) -> Iterable[str]:
    if isinstance(template, str):
        yield template
    elif isinstance(template, Mapping):
        for key, value in template.items():
            yield str(key)
            yield from _texts(value)
    elif isinstance(template, list):
        for each in template:
            yield from _texts(each)
