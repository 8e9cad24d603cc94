"""The contract's docstrings as data: a topic's module, a record's class, each field. The one source of every form of the docs."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
import typing
from enum import Enum
from typing import Any

import msgspec

from topics import stages, trajectories
from topics.contract import catalogue
from topics.contract.topic import Topic
from topics.types.session import Stage

STAGE_QUEUE = "stage.<stage>.<pool>"
NAMED_OUTPUT = "trajectories.<name>"
"""Names that stand for a family of topics."""
PACKAGES = ("polar", "topics", "proxy", "consumers", "analytics")
"""Whose classes have docstrings of their own; the bases of others are left out."""


def topics() -> dict[str, Topic]:
    """Every topic by its name in the docs, in the order in which a task passes them."""
    fixed = {topic.name: topic for topic in catalogue.FIXED if topic != trajectories.EVAL}
    return fixed | {STAGE_QUEUE: stages.topic(Stage.RUN, catalogue.DEFAULT_POOL), NAMED_OUTPUT: trajectories.EVAL}


def of_topic(topic: Topic) -> str:
    """The docstring of the topic's module, which has the topic's name."""
    name = topic.name.partition(".")[0].replace("-", "_")
    module = stages if name == "stage" else sys.modules[f"topics.{name}"]
    return inspect.cleandoc(module.__doc__ or "")


def of_class(described: type) -> str:
    return inspect.cleandoc(described.__doc__ or "")


def of_fields(record: type[msgspec.Struct]) -> dict[str, str]:
    """The fields' docstrings, each as one line, by the field's name on the wire."""
    notes = of_attributes(record)
    return {field.encode_name: notes[field.name] for field in msgspec.structs.fields(record) if field.name in notes}


def of_attributes(described: type) -> dict[str, str]:
    """The docstrings of a class's fields or members, each as one line, by name; those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(described.__mro__):
        if base.__module__.partition(".")[0] in PACKAGES:
            found |= _attributes(base)
    return found


def _attributes(described: type) -> dict[str, str]:
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(described))).body
    assert isinstance(declared, ast.ClassDef), "only classes have fields"
    found: dict[str, str] = {}
    for line, following in zip(declared.body, declared.body[1:], strict=False):
        match line, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(note))),
            ):
                found[name] = " ".join(note.split())
    return found


def nested(records: typing.Iterable[type[msgspec.Struct]]) -> list[type[msgspec.Struct]]:
    """The structs in the records' fields, at any depth, in the order of their first use."""
    found: dict[type[msgspec.Struct], None] = {}
    waiting = [part for record in records for part in _parts(record)]
    while waiting:
        part = waiting.pop(0)
        if part not in found:
            found[part] = None
            waiting = [*_parts(part), *waiting]
    return list(found)


def type_words(hint: Any) -> str:
    """A type in words: `text`, `int`, `list of int`, `bytes or null`, or a struct's name."""
    if hint in PLAIN:
        return PLAIN[hint]
    arguments = typing.get_args(hint)
    match typing.get_origin(hint):
        case types.UnionType | typing.Union:
            return " or ".join(type_words(argument) for argument in arguments)
        case typing.Annotated:
            return type_words(arguments[0])
        case origin if origin in (list, tuple):
            return f"list of {type_words(arguments[0])}"
        case origin if origin is dict:
            return f"map of {type_words(arguments[0])} to {type_words(arguments[1])}"
        case typing.Literal:
            return ", ".join(f"`{argument}`" for argument in arguments)
        case _ if isinstance(hint, type) and issubclass(hint, Enum):
            return ", ".join(f"`{member.value}`" for member in hint)
        case _:
            return str(hint.__name__)


PLAIN: dict[Any, str] = {
    str: "text",
    int: "int",
    float: "float",
    bool: "bool",
    bytes: "bytes",
    type(None): "null",
    Any: "any",
}


def _parts(record: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    hints = typing.get_type_hints(record)
    return [part for field in record.__struct_fields__ for part in _structs(hints[field])]


def _structs(hint: Any) -> list[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return [hint]
    return [part for argument in typing.get_args(hint) for part in _structs(argument)]
