"""Files of an export are written as drafts beside their places and renamed once they are whole."""

from __future__ import annotations

from pathlib import Path

DRAFT = ".part"


def draft(path: Path) -> Path:
    """The place of a file's or a folder's draft."""
    return path.with_name(path.name + DRAFT)
