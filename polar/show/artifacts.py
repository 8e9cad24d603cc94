"""Artifacts of a session: blobs that this store may lack."""

from __future__ import annotations

from topics.environment.blobs import BlobStore


def text_of(blobs: BlobStore, ref: str) -> str | None:
    """A blob as text, without line ends at its end. None if this store doesn't have all of it."""
    try:
        return blobs.get(ref).decode(errors="replace").rstrip("\n")
    except (OSError, ValueError):
        return None


def size_of(blobs: BlobStore, ref: str) -> int | None:
    """Size of a blob in bytes. None if this store doesn't have all of it."""
    try:
        return len(blobs.get(ref))
    except (OSError, ValueError):
        return None
