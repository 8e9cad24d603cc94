"""The least JSON of a schema, checked by pydantic, from whose models schemas of structured output come."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from polar.scripted.request import ApiError
from polar.scripted.structured import example


class Colour(Enum):
    RED = "red"


class Leaf(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["leaf"]
    weight: Annotated[float, Field(gt=2, lt=9)]
    depth: Annotated[int, Field(le=-3)]


class Node(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=6, max_length=7)]
    short: Annotated[str, Field(max_length=2)]
    colour: Colour
    leaves: Annotated[list[Leaf], Field(min_length=2)]
    parent: Node | None
    either: Leaf | int
    flag: bool
    nothing: None
    left_out: str = "x"


def test_a_models_own_schema_is_satisfied() -> None:
    made = example(Node.model_json_schema())
    node = Node.model_validate(made)
    assert (len(node.leaves), node.left_out, node.leaves[0].weight) == (2, "x", 3)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (True, "text"),
        ({}, "text"),
        ({"type": ["null", "integer"]}, 0),
        ({"type": ["null"]}, None),
        ({"const": {"a": 1}}, {"a": 1}),
        ({"type": "array"}, []),
        ({"items": {"type": "integer"}, "minItems": 1}, [0]),
        ({"properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a", "b"]}, {"a": 3, "b": "text"}),
        (
            {
                "allOf": [{"$ref": "#/$defs/x~1y"}, {"required": ["b"]}],
                "type": "object",
                "$defs": {"x/y": {"required": ["a"]}},
            },
            {"a": "text", "b": "text"},
        ),
        ({"type": "string", "format": "date"}, "2000-01-01"),
    ],
    ids=str,
)
def test_what_schemas_are_made_of(schema: Any, value: Any) -> None:
    assert example(schema) == value


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#"}, "response_format"),
        ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, "response_format"),
        ({"$ref": "#/$defs/a"}, "response_format"),
        ({"properties": True, "required": ["a"]}, "not a JSON schema"),
        ({"required": 3, "type": "object"}, "not a JSON schema"),
        ({"anyOf": 1}, "not a JSON schema"),
        ({"enum": {"a": 1}}, "not a JSON schema"),
        ({"type": "array", "minItems": "2"}, "not a JSON schema"),
        ({"type": "array", "minItems": 2**62}, "not a JSON schema"),
        ({"type": "string", "minLength": 10**12}, "not a JSON schema"),
        ({"type": "integer", "minimum": "1"}, "not a JSON schema"),
        ({"$ref": 1}, "not a JSON schema"),
    ],
    ids=str,
)
def test_what_nothing_satisfies_and_what_is_no_schema_are_refused(schema: Any, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        example(schema)
