"""OpenAI's custom tools, which take text instead of JSON, as functions with one string argument, `input`.

A grammar for the text is described to the model and not enforced.
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
    """The function that the model sees for a custom tool."""
    if grammar is None:
        return Function(name, description, SCHEMA)
    rule = f"`input` must match this {syntax} grammar:\n{grammar}"
    return Function(name, f"{description}\n\n{rule}" if description else rule, SCHEMA)


def arguments_of(text: str) -> str:
    """The function's arguments for a custom tool's input."""
    return _encode(_Arguments(text)).decode()


def parsed_input(arguments: str) -> str | None:
    """The custom tool's input in a function's arguments; None if they hold none, and are then the input themselves."""
    try:
        return _arguments.decode(arguments).input
    except (msgspec.DecodeError, RecursionError):
        return None
