"""Fields of records as JSON values."""

from __future__ import annotations

from typing import Any

import msgspec


def picked(record: object, names: str) -> dict[str, Any]:
    """The record's attributes with these names, separated by blanks, as JSON values."""
    return {name: msgspec.to_builtins(getattr(record, name)) for name in names.split()}
