"""OpenAI's custom tools, which take text and no JSON, as functions with one string, `input`.

A grammar for that text is told to the model, not enforced.
"""

from __future__ import annotations

import msgspec

from proxy.chat import Function

SCHEMA = msgspec.Raw(
    b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}'
)


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    input: str


_arguments = msgspec.json.Decoder(_Arguments)
_encode = msgspec.json.Encoder().encode


def function(name: str, description: str | None, grammar: str | None, syntax: str = "") -> Function:
    """What the model is shown of a custom tool."""
    if grammar is None:
        return Function(name, description, SCHEMA)
    told = f"`input` must match this {syntax} grammar:\n{grammar}"
    return Function(name, f"{description}\n\n{told}" if description else told, SCHEMA)


def arguments_of(given: str) -> str:
    """The function's arguments for a custom tool's input."""
    return _encode(_Arguments(given)).decode()


def input_of(arguments: str) -> str:
    """A custom tool's input; arguments that hold none are the input themselves."""
    try:
        return _arguments.decode(arguments).input
    except (msgspec.DecodeError, RecursionError):
        return arguments
