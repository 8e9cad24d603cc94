"""What an import says about the rows of a set, beside its template."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from polar.tasks.repositories import Repositories


@dataclass(frozen=True)
class RowOptions:
    """See the module."""

    image: str | None = None
    """The name of each row's image, with `{{field}}` places."""
    repositories: Repositories = field(default_factory=lambda: Repositories({}, Path()))
    ignored: Collection[str] = ()
    """Fields that change nothing, by the user's word."""
