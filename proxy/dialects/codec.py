"""Decoding of request bodies and encoding of events, for all dialects: errors name the field at fault."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import msgspec

from proxy.chat import Function
from proxy.errors import Refusal, RefusalError
from topics.contract.topic import MIB

T = TypeVar("T")
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""The integers that the log can hold; JSON has no bound."""
ABSENT: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
"""Default of a wire struct's raw field. Made anew each time, since a published schema can't show a shared one; unfit for structs that are
written with `omit_defaults`, which compares by identity."""
HALF = rb"\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F]..)"
SUSPECT = re.compile(HALF)
"""Half of a surrogate pair as an escape in JSON, or the text of one behind an escaped backslash."""
HALF_PAIR = re.compile(rb"(?<!\\)((?:\\\\)*)" + HALF)
"""The escape alone, and escaped backslashes before it. A second half behind the escaped text of a first one is missed."""
REPLACEMENT = rb"\1\\ufffd"
REPAIRED_BYTES = 4 * MIB
"""The largest body that is repaired. A search through a larger hostile one would hold up other calls for seconds."""
STOPS, STOP_BYTES = 64, 64 * 1024
"""Stop strings of a request: their number, and their bytes in all. OpenAI takes 4 and Google 5. They are copied to the trajectory."""
LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_encode = msgspec.json.Encoder().encode
_objects = msgspec.json.Decoder(dict[str, Any])


@contextmanager
def refusing_bad_json() -> Iterator[None]:
    """Turns errors of decoding, and of recursion into a decoded body, into RefusalError (400)."""
    try:
        yield
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusalError(Refusal.INVALID, f"the request's body is not JSON: {error}") from None
    except RecursionError:
        raise RefusalError(Refusal.INVALID, "the request's body is nested too deeply") from None


def decoded(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """A body as the decoder's type. Raises RefusalError with the path of the field at fault."""
    with refusing_bad_json():
        body.decode()  # msgspec doesn't check the text of raw fields
        return decoder.decode(with_whole_pairs(body))


def with_whole_pairs(body: bytes) -> bytes:
    """The body with U+FFFD for each half of a surrogate pair.

    A harness in JavaScript that cuts a tool's output within an emoji sends such halves from then on, and no tokenizer takes one.
    """
    if len(body) > REPAIRED_BYTES or SUSPECT.search(body) is None:
        return body
    return HALF_PAIR.sub(REPLACEMENT, body)


def decoded_part(raw: msgspec.Raw, decoder: msgspec.json.Decoder[T], path: str) -> T:
    """A raw part of a body as the decoder's type. Raises RefusalError with the field's path, which begins with `path`."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error), path) from None


def invalid_field(error: str, below: str = "") -> RefusalError:
    """The refusal for a message of msgspec like "Expected `str`, got `int` - at `$.messages[0].content`".

    The refused field is that path, under `below` if it is given.
    """
    reason, _, path = error.partition(" - at ")
    inner = path.strip("`").removeprefix("$").removeprefix(".")
    field = f"{below}.{inner}" if below and inner and not inner.startswith("[") else below + inner
    return RefusalError(Refusal.INVALID, f"{field or 'the request'}: {reason}", field=field or None)


def invalid(field: str, reason: str) -> RefusalError:
    """The refusal of a field's value."""
    return RefusalError(Refusal.INVALID, f"{field}: {reason}", field=field)


def stops_of(found: Sequence[str] | None, field: str) -> list[str]:
    """The stop strings of a request. Raises RefusalError, naming the field, for more than are recorded."""
    stops = list(found or ())
    if len(stops) > STOPS:
        raise invalid(field, f"{len(stops)} stop strings; at most {STOPS}")
    size = sum(len(stop.encode()) for stop in stops)
    if size > STOP_BYTES:
        raise invalid(field, f"{size} bytes of stop strings; at most {STOP_BYTES}")
    return stops


def is_present(raw: msgspec.Raw) -> bool:
    """False for a raw field that is missing or null."""
    return bytes(raw) not in (b"", b"null")


def is_object(text: str) -> bool:
    """True for the text of a JSON object."""
    try:
        _objects.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def file_text(name: str, data: str | None) -> str:
    """A text file's name and text, if `data` is its text in Base64; otherwise a note that the file isn't shown."""
    try:
        if data is not None:
            return f"{name}\n{base64.b64decode(data, validate=True).decode()}"
    except ValueError:
        pass
    return f"[{name}: not shown]"


def inlined(function: Function) -> str:
    """A tool that is added in mid-conversation, as text in its place: the tools at the head of a prompt never change."""
    return f"<function>{_encode(function).decode()}</function>"


def event(payload: Any, name: str | None = None) -> bytes:
    """One server-sent event, with an `event:` line for providers whose clients read it."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    # Some payloads hold raw JSON of clients and models: a line break in it is whitespace between tokens, but would end the data.
    return head + b"data: " + _encode(payload).translate(LINE_BREAKS) + b"\n\n"
