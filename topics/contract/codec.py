"""Encoding of msgpack records with a `type` tag, for old readers beside new writers.

Schemas evolve by addition with defaults: msgspec skips unknown fields, an unknown type decodes to `UnknownRecord`, which readers count and
skip, and bytes that are no record raise `DecodeError`, for the dead letters.
"""

from __future__ import annotations

from typing import Generic, TypeVar, Union

import msgspec

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for hostile bytes: also for text that isn't UTF-8, and for endless nesting."""


class DecodeError(ValueError):
    """The bytes are no record of this topic; the message has the reason."""


class UnknownRecord(msgspec.Struct, frozen=True):
    """A record of a type that this version doesn't know, from a newer writer."""

    type: str


class _Tag(msgspec.Struct):
    type: str


_tag_decoder = msgspec.msgpack.Decoder(_Tag)


def encode(record: msgspec.Struct) -> bytes:
    """The bytes of a tagged record."""
    return _encoder.encode(record)


class Codec(Generic[T]):
    """Decodes a topic's records; made once per topic."""

    def __init__(self, *records: type[T]) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(Union[records])  # noqa: UP007 - a union of a tuple
        self._tags = {str(record.__struct_config__.tag) for record in records}  # type: ignore[attr-defined] # msgspec.Struct's

    def decode(self, data: bytes) -> T | UnknownRecord:
        """Raises DecodeError for bytes that are no tagged msgpack map, or a known type with a wrong field."""
        try:
            return self._decoder.decode(data)
        except _UNDECODABLE as error:
            # Only failures pay for decoding the tag separately.
            try:
                tag = _tag_decoder.decode(data).type
            except _UNDECODABLE:
                raise DecodeError(f"not a record: {error}") from None
            if tag in self._tags:
                raise DecodeError(f"{tag}: {error}") from None
            return UnknownRecord(tag)

    def known(self, data: bytes | None) -> T | None:
        """The record; None for a tombstone, bytes that are no record, and an unknown type."""
        try:
            record = self.decode(data or b"")
        except DecodeError:
            return None
        return None if isinstance(record, UnknownRecord) else record
