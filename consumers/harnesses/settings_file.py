"""The bytes of a CLI's settings file, as JSON, TOML or lines of variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

Format = Literal["json", "toml", "env"]


def encoded(content: Mapping[str, Any] | list[Any], form: Format) -> bytes:
    """`content`: texts, numbers, booleans, lists, and mappings of such with text as keys. As TOML: a mapping. As env: one of texts."""
    if form == "json":
        return json.dumps(content).encode()
    assert isinstance(content, Mapping), "checked"
    if form == "env":  # a .env file, whose double quotes have the escapes of TOML's
        return "".join(f"{name}={toml_text(value)}\n" for name, value in content.items()).encode()
    return "".join(f"{toml_text(key)} = {_toml(value)}\n" for key, value in content.items()).encode()


def toml_text(value: str) -> str:
    """A basic string of TOML 1.0: one of JSON in which surrogates aren't escaped, and DEL is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{toml_text(key)} = {_toml(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)  # a number or a boolean, which both languages write alike
