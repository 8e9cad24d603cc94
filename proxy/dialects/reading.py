"""What all dialects do to read a body and to write events: JSON to structs with errors that name the field, and server-sent events."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from proxy.chat import Function
from proxy.errors import Refusal, RefusalError

T = TypeVar("T")
ABSENT: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
"""NOT_GIVEN as the default of a wire struct's field: made anew each time, since a published schema can't show it. Never of a struct that is
written with `omit_defaults`, which goes by identity."""
LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_encode = msgspec.json.Encoder().encode


def decoded(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """A body as the decoder's type. Raises RefusalError (400) with the path of the field at fault."""
    try:
        body.decode()  # msgspec passes over text that stays raw
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusalError(Refusal.INVALID, f"the request's body is not JSON: {error}") from None
    except RecursionError:
        raise RefusalError(Refusal.INVALID, "the request's body is nested too deeply") from None


def invalid_field(error: str, below: str = "") -> RefusalError:
    """msgspec says "Expected `str`, got `int` - at `$.messages[0].content`": the field is that path, under `below` where that is said."""
    what, _, path = error.partition(" - at ")
    inner = path.strip("`").removeprefix("$").removeprefix(".")
    field = f"{below}.{inner}" if below and inner and not inner.startswith("[") else below + inner
    return RefusalError(Refusal.INVALID, f"{field or 'the request'}: {what}", field=field or None)


def inlined(function: Function) -> str:
    """A tool that becomes known in mid-conversation, as the text that stands there: the tools at the head of a prompt never change."""
    return f"<function>{_encode(function).decode()}</function>"


def event(payload: Any, name: str | None = None) -> bytes:
    """One server-sent event, with its `event:` line where the provider's clients go by that."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    # What clients and models wrote stands raw in some payloads: there a line break is whitespace between tokens, and it would end the data.
    return head + b"data: " + _encode(payload).translate(LINE_BREAKS) + b"\n\n"
