"""Tool arguments that a harness has completed: what the model left out stands in them as the tool's schema has it by default.

Claude Code repeats `{"file_path":"a","old_string":"b","new_string":"c"}` with `"replace_all":false` before it. Invariant: only a value that
the schema names as the default is taken for added; any other difference makes two arguments different.
"""

from __future__ import annotations

import json
from typing import Any


def is_completed(told: str, said: str, schema: bytes) -> bool:
    """Whether arguments `told` by a harness are those that the model `said`, but for defaults of the tool's JSON schema."""
    try:
        return _fits(json.loads(told), json.loads(said), json.loads(schema))
    except (ValueError, RecursionError):
        return False


def _fits(told: Any, said: Any, schema: Any) -> bool:
    known = schema if isinstance(schema, dict) else {}
    if isinstance(told, dict) and isinstance(said, dict):
        properties = known.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        return said.keys() <= told.keys() and all(
            _fits(value, said[name], properties.get(name)) if name in said else _is_default(value, properties.get(name))
            for name, value in told.items()
        )
    if isinstance(told, list) and isinstance(said, list):
        return len(told) == len(said) and all(
            _fits(one, other, known.get("items")) for one, other in zip(told, said, strict=True)
        )
    return _is_same(told, said)


def _is_default(value: Any, schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema and _fits(value, schema["default"], None)


def _is_same(one: Any, other: Any) -> bool:
    """Python takes True for 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
