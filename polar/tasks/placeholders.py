"""Fills `{{field}}` places in a template from a row's fields. `{{field.inner}}` is a value within a field that is a mapping."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from topics.types.errors import InputError

PLACE = re.compile(r"\{\{\s*([\w.-]+)\s*\}\}")


def filled(template: Any, fields: Mapping[str, Any], path: str = "--template") -> Any:
    """The template with each `{{field}}` replaced by the field's value.

    Text that is nothing but one place becomes the value, whatever its type; within other text a value that is no text is written as JSON.
    A value's own `{{…}}` stays as it is. `path`: the template's place, for errors. Raises InputError for a field that the row hasn't got.
    """
    match template:
        case dict():
            return {name: filled(value, fields, f"{path}.{name}") for name, value in template.items()}
        case list():
            return [filled(value, fields, f"{path}.{index}") for index, value in enumerate(template)]
        case str():
            whole = PLACE.fullmatch(template)
            if whole is not None:
                return _value(whole[1], fields, path)
            return PLACE.sub(lambda found: _text(_value(found[1], fields, path)), template)
    return template


def names(template: Any) -> set[str]:
    """The fields that a template names."""
    match template:
        case dict():
            return {name for value in template.values() for name in names(value)}
        case list():
            return {name for value in template for name in names(value)}
        case str():
            return set(PLACE.findall(template))
    return set()


def field_of(name: str, fields: Mapping[str, Any]) -> str:
    """The field that a place names: the longest name of a field that begins it, or else the place's own name."""
    found = name
    while found not in fields and "." in found:
        found = found.rpartition(".")[0]
    return found if found in fields else name


def _value(name: str, fields: Mapping[str, Any], path: str) -> Any:
    field = field_of(name, fields)
    if field not in fields:
        known = ", ".join(sorted(fields))
        raise InputError(path, f"{{{{{name}}}}}", f"the row has no such field; it has: {known}")
    value = fields[field]
    for inner in name[len(field) :].split(".")[1:]:
        if not isinstance(value, Mapping) or inner not in value:
            known = ", ".join(sorted(value)) if isinstance(value, Mapping) else "no mapping"
            raise InputError(path, f"{{{{{name}}}}}", f"the row's {field} has no such value; it has: {known}")
        value = value[inner]
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
