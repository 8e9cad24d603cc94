"""When two spellings of an assistant turn have one meaning: a sampled answer, and the turn by which a harness repeats it.

Harnesses parse tool arguments and write them anew (`{"n" : 1.0}` becomes `{"n":1}`), add the defaults of the tool's schema to them, trim
text and reasoning, and drop or invent the ids of tool calls. Invariant: only these rewrites are equal; any other difference is an edit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from proxy.chat import Message, TextPart, Tool

ROUNDED = re.compile(r"[0-9.]{16}|[0-9][eE]")
"""Matches arguments that may hold a number of more digits than JavaScript keeps."""
NumberReader = Callable[[str], float | str | None]
_encode = msgspec.json.Encoder().encode


class Meaning(NamedTuple):
    """Digests of the parts of a turn that every rewrite preserves: trimmed text, tool names, argument values. Reasoning isn't included."""

    rounded: bytes
    """With numbers as JavaScript keeps them: equal for all spellings of a turn."""
    exact: bytes
    """With numbers as written; equals `rounded` if rounding changes none of them."""


INCOMPARABLE = Meaning(b"", b"")
"""The meaning of a turn that no answer can equal."""


def meaning_of(message: Message) -> Meaning:
    """The meaning of an assistant turn."""
    text = text_of(message)
    if text is None or message.name is not None:
        return INCOMPARABLE
    rounded = _meaning_digest(text, message, _rounded)
    may_round = any(ROUNDED.search(call.function.arguments) for call in message.tool_calls)
    return Meaning(rounded, _meaning_digest(text, message, _exact) if may_round else rounded)


def match_rank(turn: Message, meaning: Meaning, sampled: Message, sampled_meaning: Meaning) -> tuple[bool, ...] | None:
    """How closely a turn repeats a sampled message with the same `rounded` meaning: the greater, the closer; None if it doesn't.

    It doesn't if its numbers are neither all as sampled nor all as JavaScript rounds them, or its text or reasoning isn't cut from the
    sampled one by trimming.
    """
    text, sampled_text = text_of(turn) or "", text_of(sampled) or ""
    if meaning.exact not in sampled_meaning or text not in sampled_text:
        return None
    if turn.reasoning and not _is_trimmed(turn.reasoning, sampled.reasoning or ""):
        return None
    pairs = list(zip(turn.tool_calls, sampled.tool_calls, strict=True))
    return (
        all(call.id == original.id for call, original in pairs),
        meaning.exact == sampled_meaning.exact,
        all(call.function.arguments == original.function.arguments for call, original in pairs),
        text == sampled_text,
        turn.reasoning == sampled.reasoning,
    )


def adds_only_defaults(turn: Message, sampled: Message, tools: Sequence[Tool]) -> bool:
    """Whether a turn equals a sampled message except for schema defaults that the harness added to arguments of tool calls.

    Claude Code repeats `{"file_path":"a","old_string":"b","new_string":"c"}` with `"replace_all":false` added.
    """
    names = [call.function.name for call in turn.tool_calls]
    if names != [call.function.name for call in sampled.tool_calls] or _trimmed_text(turn) != _trimmed_text(sampled):
        return False
    schemas = {tool.function.name: bytes(tool.function.parameters) for tool in tools}
    return all(
        is_completed(call.function.arguments, original.function.arguments, schemas.get(name, b""))
        for name, call, original in zip(names, turn.tool_calls, sampled.tool_calls, strict=True)
    )


def is_completed(arguments: str, sampled: str, schema: bytes) -> bool:
    """Whether tool arguments equal the sampled ones except for added defaults of the tool's JSON schema."""
    try:
        return _completes(json.loads(arguments), json.loads(sampled), json.loads(schema))
    except (ValueError, RecursionError):
        return False


def text_of(message: Message) -> str | None:
    """The text of a turn, its text parts joined; None if a part isn't text."""
    if not isinstance(message.content, list):
        return message.content or ""
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    return "".join(texts) if len(texts) == len(message.content) else None


def digest(data: bytes) -> bytes:
    """A 16-byte digest."""
    return blake2b(data, digest_size=16).digest()


def _completes(value: Any, sampled: Any, schema: Any) -> bool:
    known = schema if isinstance(schema, dict) else {}
    if isinstance(value, dict) and isinstance(sampled, dict):
        properties = known.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        return sampled.keys() <= value.keys() and all(
            _completes(inner, sampled[name], properties.get(name))
            if name in sampled
            else _is_default(inner, properties.get(name))
            for name, inner in value.items()
        )
    if isinstance(value, list) and isinstance(sampled, list):
        return len(value) == len(sampled) and all(
            _completes(one, other, known.get("items")) for one, other in zip(value, sampled, strict=True)
        )
    # Python takes True for 1.
    return isinstance(value, bool) == isinstance(sampled, bool) and bool(value == sampled)


def _is_default(value: Any, schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema and _completes(value, schema["default"], None)


def _trimmed_text(message: Message) -> str | None:
    text = text_of(message)
    return None if text is None else text.strip()


def _is_trimmed(text: str, original: str) -> bool:
    return text == original or (text.strip() == original.strip() and text in original)


def _meaning_digest(text: str, message: Message, number: NumberReader) -> bytes:
    calls = [(call.function.name, _canonical(call.function.arguments, number)) for call in message.tool_calls]
    return digest(_encode((text.strip(), calls)))


def _canonical(arguments: str, number: NumberReader) -> str:
    """Arguments in one spelling of their JSON value; unchanged if they aren't JSON."""
    try:
        value = json.loads(
            arguments.strip() or "{}", parse_int=number, parse_float=number, parse_constant=lambda _: None
        )
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _rounded(digits: str) -> float | None:
    """A number as JavaScript keeps it: -0 is 0, infinity is null."""
    value = float(digits)
    return value + 0.0 if math.isfinite(value) else None


def _exact(digits: str) -> float | str | None:
    """A number as JavaScript keeps it, or its digits if JavaScript would change it."""
    value = _rounded(digits)
    try:
        return value if value is not None and Decimal(repr(value)) == Decimal(digits) else digits
    except ArithmeticError:  # an exponent beyond Decimal's
        return digits
