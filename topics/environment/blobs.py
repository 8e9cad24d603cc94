"""The blob store, a content-addressed folder for values that are too big for an event, which then carries `{ref, size}`.

A reference is `blob:sha256/<hex>`; every reader resolves it against its own `POLAR_BLOBS`. Writing the same bytes twice writes once.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import msgspec

from topics.environment import private_files

REF = re.compile(r"^blob:sha256/([0-9a-f]{64})$")


class BlobRef(msgspec.Struct, frozen=True):
    """Reference to a value, and its size in bytes."""

    ref: str
    size: int


class BlobStore:
    """A folder of blobs, in subfolders named by the first two hex digits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> BlobRef:
        """Store bytes durably; the file appears whole or not at all. The time of a file that is there already becomes now."""
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        try:
            os.utime(path)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            private_files.replace(path, data, is_durable=True)
        return BlobRef(f"blob:sha256/{digest}", len(data))

    def get(self, ref: str) -> bytes:
        """The bytes behind a reference. Raises FileNotFoundError, or ValueError for an invalid reference or damaged bytes."""
        found = REF.match(ref)
        if found is None:
            raise ValueError(f"not a blob reference: {ref!r} (expected blob:sha256/<64 hex digits>)")
        data = self._path(found[1]).read_bytes()
        if hashlib.sha256(data).hexdigest() != found[1]:
            raise ValueError(f"{ref}: the stored bytes are damaged")
        return data

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest
