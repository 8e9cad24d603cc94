"""The images and sounds that trajectories name, read from the blob store."""

from __future__ import annotations

from topics.environment import blob_store
from topics.environment.settings import Settings, load
from topics.types.completion import Medium
from topics.types.errors import InputError


class MediaReader:
    """Reads the bytes behind `Row.media` and the exporters' `load`."""

    def __init__(self, settings: Settings | None = None) -> None:
        """`settings`: those that name the blob store; None: as the `polar` command finds them."""
        self._blobs = blob_store.of(settings or load())

    def read(self, medium: Medium) -> bytes:
        """The bytes. Raises InputError if the proxy kept none, and as `BlobStore.get`."""
        if medium.blob is None:
            reason = "the proxy had no blob store for it (POLAR_BLOBS), or the engine fetched it from a URL"
            raise InputError("media.blob", medium.digest, reason)
        return self._blobs.get(medium.blob)
