"""Reads blobs that a trajectory refers to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from topics.environment.blobs import BlobStore
from topics.types.errors import InputError

Value = TypeVar("Value")


def read(blobs: BlobStore, field: str, ref: str, named: str, decode: Callable[[bytes], Value]) -> Value:
    """A blob, decoded. Raises InputError, by the field and by what it is `named`, for a blob that the store lacks, that is damaged, or that
    `decode` refuses with a ValueError; OSError if the store can't be read."""
    try:
        return decode(blobs.get(ref))
    except FileNotFoundError:
        reason = (
            f"{blobs.place} hasn't the {named}: name the proxies' store (POLAR_BLOBS), or train before it is deleted"
        )
        raise InputError(field, ref, reason) from None
    except ValueError as error:
        raise InputError(field, ref, f"the {named} can't be used: {error}") from None
