"""JSON values that the documents of ATIF, Harbor and Inspect spell alike."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]
"""A JSON object."""


def instant(milliseconds: int) -> str:
    """A Unix time in ms as ISO 8601 in UTC, such as 1970-01-01T00:00:00.015Z; equal lengths, so texts sort as times do."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
