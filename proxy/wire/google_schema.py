"""Google's Schema as the JSON schema that engines understand.

Types in upper case become lower case, `nullable` becomes a type, and names in snake_case and counts in quotes get JSON schema's spelling. A
JSON schema passes unchanged, except for upper-case types, which Gemini CLI writes there too. Key order stays: it reaches the prompt.
"""

from __future__ import annotations

from typing import Any

TYPES = {name: name.lower() for name in ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")}
UNSPECIFIED = "TYPE_UNSPECIFIED"
NAMES = {
    "additional_properties": "additionalProperties",
    "any_of": "anyOf",
    "defs": "$defs",
    "max_items": "maxItems",
    "max_length": "maxLength",
    "max_properties": "maxProperties",
    "min_items": "minItems",
    "min_length": "minLength",
    "min_properties": "minProperties",
    "property_ordering": "propertyOrdering",
    "ref": "$ref",
}
COUNTS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})
ONE = frozenset({"items", "additionalProperties", "not"})
"""Keywords whose value is a schema."""
MANY = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords whose value maps names to schemas."""


def json_schema(schema: Any) -> Any:
    """The JSON schema of a Schema; any value but an object as it is."""
    return _fields(schema) if isinstance(schema, dict) else schema


def _fields(schema: dict[str, Any]) -> dict[str, Any]:
    named = {NAMES.get(key, key): value for key, value in schema.items()}
    converted = {key: _value(key, value) for key, value in named.items()}
    if converted.get("type") == UNSPECIFIED:
        del converted["type"]
    return _with_null(converted) if converted.pop("nullable", None) is True else converted


def _value(name: str, value: Any) -> Any:
    if name == "type":
        return [_type(one) for one in value] if isinstance(value, list) else _type(value)
    if name in ONE:
        return json_schema(value)
    if name in MANY and isinstance(value, list):
        return [json_schema(one) for one in value]
    if name in NAMED and isinstance(value, dict):
        return {key: json_schema(one) for key, one in value.items()}
    if name in COUNTS and isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return value


def _type(value: Any) -> Any:
    return TYPES.get(value, value) if isinstance(value, str) else value


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, extended to allow null."""
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    if isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    if isinstance(schema.get("enum"), list):
        schema["enum"] = [*schema["enum"], None]
    return schema
