"""The lake that settings name: in a folder, or in a bucket."""

from __future__ import annotations

from pathlib import Path

from analytics.lake.manifest import Lake
from topics.environment.settings import Settings


def lake(settings: Settings) -> Lake:
    """Sends nothing. Raises NotReadyError for a bucket without the package obstore, or AWS_* variables that can't be used."""
    address = settings.lake_address
    if isinstance(address, Path):
        return Lake(settings.lake_folder)
    from analytics.lake.bucket import BucketStore

    return Lake(BucketStore(address / settings.namespace, settings.lake_folder))
