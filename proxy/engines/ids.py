"""Fast decoding of token ids in an engine's JSON: a long prompt has tens of thousands, most of the answer's bytes.

`lift` cuts a long array out of the text and decodes it with numpy, if it is written as vLLM writes it, in digits and commas alone. Any
other array is left to the JSON decoder, and so are errors. `without` drops an array that is written as another is, which costs a comparison
of bytes and no decoding.
"""

from __future__ import annotations

import numpy as np

from topics.types.tokens import IDS

LARGEST = int(np.iinfo(IDS).max)
SHORT = 4096
"""Arrays of fewer bytes are decoded by the JSON decoder just as fast."""


def lift(body: bytes, field: str) -> tuple[bytes, bytes | None]:
    """A JSON object with the array of `field` emptied, and the array's ids, int32 LE; the unchanged object and None if it can't be cut."""
    # This can only be a key: within a string the quotes would be escaped.
    key = f'"{field}":['.encode()
    start = body.find(key) + len(key)
    end = body.find(b"]", start)
    if start < len(key) or end - start < SHORT or body.find(key, end) >= 0:
        return body, None
    ids = _read(body[start:end])
    return (body, None) if ids is None else (body[:start] + body[end:], ids)


def numbers(body: bytes, field: str) -> bytes:
    """What stands in the array of `field`, the first of that name in a JSON object; empty if there is none."""
    key = f'"{field}":['.encode()
    start = body.find(key) + len(key)
    return b"" if start < len(key) else body[start : max(body.find(b"]", start), start)]


def without(body: bytes, field: str, text: bytes) -> bytes:
    """A JSON object whose array `field` is emptied if its content is exactly `text`; otherwise the unchanged object."""
    key = f'"{field}":['.encode()
    start = body.find(key) + len(key)
    end = start + len(text)
    is_same = start >= len(key) and body[start:end] == text and body[end : end + 1] == b"]"
    return body[:start] + body[end:] if is_same else body


def _read(text: bytes) -> bytes | None:
    """The ids; None unless the text is numbers up to 2³¹ - 1 with a comma between any two."""
    characters = np.frombuffer(text, dtype=np.uint8)
    commas = characters == ord(",")
    if not text or not ((characters - ord("0") < 10) | commas).all():
        return None
    try:
        ids = np.fromstring(text, dtype=np.int64, sep=",")
    except (ValueError, DeprecationWarning):  # older numpys warn
        return None
    if len(ids) != np.count_nonzero(commas) + 1 or int(ids.max()) > LARGEST:
        return None
    return ids.astype(IDS).tobytes()
