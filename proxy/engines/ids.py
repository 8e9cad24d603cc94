"""Token ids out of an engine's JSON without a Python number for each: a long prompt has tens of thousands, most of the answer's bytes.

`lift` takes a long array out of the text and reads it in one go, where it is written as vLLM does, digits and commas alone; all else is
left to the JSON decoder, and so is saying what is wrong with it.
"""

from __future__ import annotations

import numpy as np

from topics.types.tokens import IDS

LARGEST = int(np.iinfo(IDS).max)
SHORT = 4096
"""Bytes of an array that the decoder reads as fast."""


def lift(body: bytes, field: str) -> tuple[bytes, bytes | None]:
    """A JSON object with the array of `field` empty, and its ids, int32 LE; the object as it is and None where they can't be read so."""
    # Within a string its quotes would be escaped: so this can only be a key.
    key = f'"{field}":['.encode()
    start = body.find(key) + len(key)
    end = body.find(b"]", start)
    if start < len(key) or end - start < SHORT or body.find(key, end) >= 0:
        return body, None
    ids = _read(body[start:end])
    return (body, None) if ids is None else (body[:start] + body[end:], ids)


def _read(text: bytes) -> bytes | None:
    """None for everything but numbers up to 2³¹ - 1, a comma between any two."""
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
