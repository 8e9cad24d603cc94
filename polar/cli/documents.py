"""Reads TaskRequests from files: YAML (several documents), JSON (one, or a list) and JSON Lines, each with its place in the file.

Repeated fields, and values that JSON can't carry (dates, NaN, keys that are no strings), are refused, not converted.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from topics.types.errors import InputError

STDIN = "-"
YAML_SUFFIXES = {".yaml", ".yml"}
LINES_SUFFIXES = {".jsonl", ".ndjson"}
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    """A decoded body, and its place for messages: `tasks.yaml, document 2 (line 14)`."""

    place: str
    body: dict[str, Any]


def read(file: str) -> list[Document]:
    """All documents of a file; `-` is standard input. Raises InputError, naming file and line."""
    try:
        data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        raise InputError("FILE", file, f"can't be read: {error.strerror}") from None
    return _decoded(file, data)


def stream(file: str) -> Iterator[Document]:
    """The documents one by one: JSON Lines are read line by line, so a pipe may stay open for days; other formats as a whole.

    Raises InputError at the first bad document.
    """
    if file != STDIN and Path(file).suffix.lower() not in LINES_SUFFIXES:
        yield from read(file)
        return
    name = _name(file)
    try:
        with nullcontext(sys.stdin.buffer) if file == STDIN else Path(file).open("rb") as lines:
            found = False
            for number, line in enumerate(lines, 1):
                if file == STDIN and not found and line.strip() and not _is_one_line_of_json(line):
                    yield from _decoded(file, line + lines.read())
                    return
                for document in _documents(name, _from_lines(name, _text(name, line), number)):
                    found = True
                    yield document
    except OSError as error:
        raise InputError("FILE", file, f"can't be read: {error.strerror}") from None
    if not found:
        raise InputError(name, "", "holds no TaskRequest")


def _is_one_line_of_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _name(file: str) -> str:
    return "standard input" if file == STDIN else file


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(name, data[error.start : error.start + 8], f"not UTF-8 at byte {error.start}") from None


def _decoded(file: str, data: bytes) -> list[Document]:
    name = _name(file)
    text = _text(name, data)
    found = _documents(name, _reader(file, text)(name, text))
    if not found:
        raise InputError(name, text[:40], "holds no TaskRequest")
    return found


def _documents(name: str, bodies: Iterator[tuple[str, object]]) -> list[Document]:
    """The documents, with places. Raises InputError for a body that JSON can't carry."""
    try:
        return [Document(place, _checked(place, body)) for place, body in bodies]
    except RecursionError:
        raise InputError(name, "…", "nested too deeply") from None


def folder_of(file: str) -> Path:
    """Where the relative `source` paths of a file's tasks start: its folder; for standard input the current folder."""
    return Path() if file == STDIN else Path(file).parent


Reader = Callable[[str, str], Iterator[tuple[str, object]]]


def _reader(file: str, text: str) -> Reader:
    """The reader for the file's suffix. Without a known one: JSON Lines if each line is an object, JSON if it starts so, else YAML."""
    suffix = Path(file).suffix.lower()
    if suffix == ".json":
        return _from_json
    if suffix in LINES_SUFFIXES:
        return _from_lines
    if suffix in YAML_SUFFIXES or not text.lstrip().startswith(("{", "[")):
        return _from_yaml
    lines = [line for line in text.splitlines() if line.strip()]
    return _from_lines if len(lines) > 1 and all(line.startswith("{") for line in lines) else _from_json


def _from_json(name: str, text: str) -> Iterator[tuple[str, object]]:
    yield from _flattened(name, _json(name, text, 1))


def _from_lines(name: str, text: str, first_line: int = 1) -> Iterator[tuple[str, object]]:
    # Not splitlines(): a JSON string may contain U+2028 and similar separators.
    for number, line in enumerate(text.split("\n"), first_line):
        if line.strip():
            yield f"{name}, line {number}", _json(name, line, number)


def _from_yaml(name: str, text: str) -> Iterator[tuple[str, object]]:
    loader = _Loader(text)
    number = 0
    try:
        while loader.check_node():
            node = loader.get_node()
            number += 1
            body = None if node is None else loader.construct_document(node)
            if node is not None and body is not None:
                yield from _flattened(f"{name}, document {number} (line {node.start_mark.line + 1})", body)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        shown = text.split("\n")[line - 1].strip() if mark else text[:40]
        raise InputError(f"{name}, line {line}", shown, f"not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name}, document {number + 1}", text[:40], f"not YAML: {error}") from None
    finally:
        loader.dispose()


def _flattened(place: str, body: object) -> Iterator[tuple[str, object]]:
    """A list is a list of TaskRequests."""
    if isinstance(body, list):
        yield from ((f"{place}, item {number}", item) for number, item in enumerate(body, 1))
    else:
        yield place, body


def _json(name: str, text: str, first_line: int) -> object:
    try:
        return json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        shown = text.split("\n")[error.lineno - 1][max(0, error.colno - 20) :][:60]
        raise InputError(f"{name}, line {line}, column {error.colno}", shown, f"not JSON: {error.msg}") from None
    except ValueError as error:
        raise InputError(f"{name}, line {first_line}", text[:40], f"not JSON: {error}") from None


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the field {max(keys, key=keys.count)!r} appears twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a repeated field, of which YAML's own takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the field {key!r} appears twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _checked(place: str, body: object) -> dict[str, Any]:
    """The body. Raises InputError unless it is a mapping that JSON can carry."""
    if not isinstance(body, dict):
        raise InputError(place, body, "expected a TaskRequest, a mapping of fields")
    _check_value(place, "", body)
    return body


def _check_value(place: str, path: str, value: object) -> None:
    match value:
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise InputError(f"{place}: {path or 'task'}", key, "a field's name is a string; put it in quotes")
                _check_value(place, f"{path}.{key}" if path else key, item)
        case list():
            for index, item in enumerate(value):
                _check_value(place, f"{path}.{index}", item)
        case float() if not math.isfinite(value):
            raise InputError(f"{place}: {path}", value, "must be a finite number")
        case str() if SURROGATE.search(value):
            raise InputError(f"{place}: {path}", value, "half of a surrogate pair is not text")
        case None | bool() | int() | float() | str():
            pass
        case _:
            raise InputError(f"{place}: {path}", value, f"JSON has no {type(value).__name__}; put it in quotes")
