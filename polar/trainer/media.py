"""The images and sounds that trajectories name, read from the blob store."""

from __future__ import annotations

from typing import Self

from polar.trainer import stored
from topics.environment import blob_store
from topics.environment.blobs import BlobStore
from topics.environment.settings import Settings
from topics.types.completion import Medium
from topics.types.errors import InputError


class MediaReader:
    """Reads the bytes behind `Row.media` and the exporters' `load`."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """From the store that `POLAR_BLOBS` names. Raises NotReadyError if a bucket needs an extra that isn't installed."""
        return cls(blob_store.cached(settings))

    def read(self, medium: Medium) -> bytes:
        """The bytes. Raises InputError if the proxy kept none, and as `stored.read`."""
        if medium.blob is None:
            reason = "the proxy had no blob store for it (POLAR_BLOBS), or the engine fetched it from a URL"
            raise InputError("media.blob", medium.digest, reason)
        return stored.read(self._blobs, "media.blob", medium.blob, f"{medium.kind} {medium.digest}", bytes)
