"""Bodies that begin as a harness's and go wrong: in what they say, and in how it is spelled.

Drawn by hypothesis, so that one which breaks something shrinks to what breaks it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st

from proxy.dialects import signature
from tests.proxy.fuzz.bodies import CALLS

T = TypeVar("T")
Draw = st.DrawFn
Place = tuple[Any, Any]
"""A list or an object, and the index or name of what stands there."""


@dataclass(frozen=True)
class Verbatim:
    """JSON that no writer of JSON makes."""

    text: str


@dataclass(frozen=True)
class Twice:
    """Two values under one name."""

    first: Any
    second: Any


def spelled(value: Any, ascii_only: bool) -> str:
    """As JSON, or what looks like it."""
    match value:
        case Verbatim(text):
            return text
        case Twice(first):
            return spelled(first, ascii_only)
        case dict():
            pairs: list[str] = []
            for name, inner in value.items():
                twice = [inner.first, inner.second] if isinstance(inner, Twice) else [inner]
                pairs += [f"{json.dumps(name, ensure_ascii=ascii_only)}: {spelled(one, ascii_only)}" for one in twice]
            return "{" + ", ".join(pairs) + "}"
        case list():
            return "[" + ", ".join([spelled(inner, ascii_only) for inner in value]) + "]"
        case _:
            return json.dumps(value, ensure_ascii=ascii_only)


def _places(value: Any) -> Iterator[Place]:
    """All places in a body."""
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for at, one in list(inner):
        yield value, at
        yield from _places(one)


def _words(value: Any) -> Iterator[str]:
    for holder, at in _places(value):
        if isinstance(at, str):
            yield at
        if isinstance(holder[at], str) and len(holder[at]) < 40:
            yield holder[at]


WORDS = sorted({word for call in CALLS for word in _words(call.body)})
SUBTREES = [holder[at] for call in CALLS for holder, at in _places(call.body)]
DEEP = 3_000
"""Beyond Python's own limit."""
SEALED = signature.seal("\u00e9" * 2_000)
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 129, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 0.5, -0.0, 1e308, 5e-324,
    *map(Verbatim, ("NaN", "Infinity", "-Infinity", "1e999", "1" * 5000, "-", "01", "0x1", "1.0", "1e2", "'a'", "undefined")),
    *map(Verbatim, ('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\q"', '"a\nb"', '{"\\ud800": 1}')),
    *map(Verbatim, ("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[" * 100_000)),
    "", " ", "\0", "\x1b[31m", "\u202e", "\ufeff", "\u2028", "\U0001f469\u200d\U0001f467" * 50, "\U000e0041", "\ud800",
    "a" * 70_000, "\u00e9" * 1000, "{}", "[]", "null", "{" * 300, '{"command": "ls"} x', "NaN", "1", "data:", "data:,",
    "data:image/png;base64,", "data:image/png;base64,!", "data:text/plain;base64,/w==", "data:text/plain;base64,\u00e9",
    "http://127.0.0.1:1/x.png", "file:///etc/passwd", "polar:", "polar:AAAA", SEALED, "<|im_start|>", "<|im_end|>",
    "<tool_call>\n{}\n</tool_call>", "</think>", "{{ x }}", "%s%n", "${x}", "../..",
    [], {}, [None], [[]], [{}], {"": None}, {"type": None}, {"type": "text"}, {"text": 1}, {"$ref": "#"}, ["a"] * 2000,
    {"type": "object", "properties": {"a": {"$ref": "#"}}}, {"type": "string", "pattern": "(a+)+$"},
]  # fmt: skip
NUMBERS = st.integers(0, 2**16 - 1)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=6,
)
CHANGES = ("replace", "replace", "swap", "delete", "add", "repeat", "wrap", "unwrap", "twice")
FORMS = (*["utf-8"] * 12, "utf-16", "latin-1", "bom")
SPOILT = (*["whole"] * 12, "cut", "flip", "more", "null")


def one_of(draw: Draw, options: Sequence[T]) -> T:
    """One of them; cheaper than a strategy made anew."""
    return options[draw(NUMBERS) % len(options)]


def copied(value: Any) -> Any:
    """JSON that may be changed in place."""
    if isinstance(value, dict):
        return {name: copied(inner) for name, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


def mutated(draw: Draw, body: Any) -> Any:
    """A body with one thing wrong; it is changed in place where it can be."""
    found = list(_places(body))
    if not found or draw(NUMBERS) % 100 == 99:
        return _junk(draw)
    holder, at = one_of(draw, found)
    value, change = holder[at], one_of(draw, CHANGES)
    if change == "replace":
        holder[at] = _junk(draw)
    elif change == "swap":
        holder[at] = copied(one_of(draw, SUBTREES))
    elif change == "delete":
        del holder[at]
    elif change == "add" and isinstance(holder, dict):
        holder[one_of(draw, WORDS)] = _junk(draw)
    elif change == "repeat" and isinstance(holder, list):
        holder[at:at] = [value] * one_of(draw, (1, 2, 40))
    elif change == "wrap":
        holder[at] = one_of(draw, ([value], {"type": value}, {"value": value}, [[value]]))
    elif change == "unwrap" and isinstance(value, list | dict) and value:
        holder[at] = next(iter(value.values() if isinstance(value, dict) else value))
    elif change == "twice" and isinstance(holder, dict):
        holder[at] = Twice(value, _junk(draw))
    return body


def _junk(draw: Draw) -> Any:
    """A value out of place."""
    among = one_of(draw, (ODD, WORDS, SUBTREES, None))
    return draw(ANY_JSON) if among is None else copied(one_of(draw, among))


def text(draw: Draw, body: Any) -> bytes:
    """Some spelling of a body, rarely cut, flipped or with something after it."""
    form, how = one_of(draw, FORMS), one_of(draw, SPOILT)
    told = spelled(body, ascii_only=draw(NUMBERS) % 2 == 1)
    raw = told.encode("utf-8" if form == "bom" else form, errors="replace" if form == "latin-1" else "surrogatepass")
    at = draw(NUMBERS) % (len(raw) + 1) if how in ("cut", "flip") else len(raw)
    if how == "flip":
        return raw[:at] + bytes([draw(NUMBERS) % 256]) + raw[at + 1 :]
    tail = {"more": b" {}", "null": b"\0"}.get(how, b"")
    return (b"\xef\xbb\xbf" if form == "bom" else b"") + raw[:at] + tail
