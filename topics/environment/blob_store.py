"""The blob store that settings name: a folder, or a bucket."""

from __future__ import annotations

from pathlib import Path

from topics.environment.blob_cache import CachedBlobs
from topics.environment.blobs import BlobStore, FolderBlobs
from topics.environment.s3_blobs import S3Blobs
from topics.environment.settings import Settings

CACHE = "blob-cache"
"""Folder in the data folder of a host whose blobs are in a bucket."""


def of(settings: Settings) -> BlobStore:
    """The store, for processes that read a blob once."""
    address = settings.blobs_address
    return FolderBlobs(address) if isinstance(address, Path) else S3Blobs(address)


def cached(settings: Settings) -> BlobStore:
    """The store, for processes that read a blob for many sessions: a bucket is read through copies in DATA/blob-cache."""
    store = of(settings)
    return store if isinstance(store, FolderBlobs) else CachedBlobs(store, settings.data / CACHE)
