"""Minimal JSON for a schema, as text or as a tool's arguments: the answer to constrained requests without a script.

With it, clients that use structured output and forced tool calls can be tested. Types, properties, enums, references and bounds are
supported; patterns are not.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from polar.scripted.conversation import Call, Turn
from polar.scripted.request import ApiError, ChatRequest

DEEP: Final = 6
"""From this depth on the last of several choices is used, which is null in self-referring schemas."""
TOO_DEEP: Final = 40
TOO_LONG: Final = 10_000
"""Items, or characters."""
FORMATS: Final = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "someone@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def demanded(request: ChatRequest, fields: Mapping[str, Any]) -> Turn | None:
    """The turn that a request's tool choice or response format holds the answer to; None where it holds it to nothing.

    `fields` is the request as it came. Raises ApiError 400 for a schema that nothing satisfies.
    """
    tool = _forced(request, fields)
    if tool is not None:
        arguments = example(tool.get("parameters") or {"type": "object"})
        return Turn("assistant", calls=(Call(tool["name"], _compact(arguments)),))
    match fields.get("response_format"):
        case {"type": "json_object"}:
            return Turn("assistant", _compact({"text": "text"}))
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return Turn("assistant", _compact(example(schema)))
        case _:
            return None


def _forced(request: ChatRequest, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The function that the request forces the model to call."""
    functions: list[dict[str, Any]] = [tool["function"] for tool in fields.get("tools") or []]
    choice = request.tool_choice
    if choice == "required":
        return functions[0] if functions else None
    name = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else None
    return next((function for function in functions if function["name"] == name), None)


def example(schema: Any) -> Any:
    """A minimal value of a JSON schema. Raises ApiError 400 for an invalid or endless schema."""
    try:
        return _example(schema, schema, 0)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ApiError(400, f"response_format: not a JSON schema: {error}", param="response_format") from error


def _example(schema: Any, root: Any, depth: int) -> Any:
    if depth > TOO_DEEP:
        raise ApiError(400, "response_format: nothing satisfies a schema that never ends", param="response_format")
    if not isinstance(schema, dict):
        return "text"
    if "$ref" in schema:
        return _example(_referred(schema["$ref"], root), root, depth + 1)
    for choices in ("anyOf", "oneOf"):
        if schema.get(choices):
            return _example(schema[choices][-1 if depth > DEEP else 0], root, depth + 1)
    if schema.get("allOf"):
        return _example(_merged(schema, root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    match _type_of(schema):
        case "object":
            properties = schema.get("properties") or {}
            return {name: _example(properties.get(name), root, depth + 1) for name in schema.get("required") or ()}
        case "array":
            return [_example(schema.get("items"), root, depth + 1)] * _length(schema, "minItems")
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return _text(schema)


def _type_of(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return next((str(each) for each in kind if each != "null"), "null")
    if kind is None:
        return "object" if "properties" in schema else "array" if "items" in schema else "string"
    return str(kind)


def _referred(pointer: str, root: Any) -> Any:
    found = root
    for step in pointer.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise ApiError(400, f"response_format: {pointer!r} leads nowhere", param="response_format")
        found = found[name]
    return found


def _merged(schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
    """The schemas of `allOf` and the keywords beside it as one schema: properties are merged, other keywords replaced."""
    parts = [_referred(part["$ref"], root) if "$ref" in part else part for part in schema["allOf"]]
    parts.append({word: value for word, value in schema.items() if word != "allOf"})
    whole: dict[str, Any] = {}
    for part in parts:
        properties = (whole.get("properties") or {}) | (part.get("properties") or {})
        required = [*(whole.get("required") or ()), *(part.get("required") or ())]
        whole |= part | {"properties": properties, "required": required}
    return whole


def _number(schema: Mapping[str, Any]) -> float:
    """0, or the bound nearest to it."""
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    least = schema.get("minimum") if above is None else above + 1
    most = schema.get("maximum") if below is None else below - 1
    if least is not None and least > 0:
        return least  # type: ignore[no-any-return] # as the schema writes it
    if most is not None and most < 0:
        return most  # type: ignore[no-any-return]
    return 0


def _text(schema: Mapping[str, Any]) -> str:
    text = FORMATS.get(schema.get("format", ""), "text")
    return text.ljust(_length(schema, "minLength"), "x")[: schema.get("maxLength")]


def _length(schema: Mapping[str, Any], bound: str) -> int:
    least = schema.get(bound, 0)
    if least > TOO_LONG:
        raise ValueError(f"{bound} {least}: {TOO_LONG} is the most that is played")
    return int(least)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
