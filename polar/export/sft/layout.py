"""The forms of a dataset's files."""

from __future__ import annotations

from enum import StrEnum


class Layout(StrEnum):
    MESSAGES = "messages"
    """Chat messages, a line of JSON per row."""
    TOKENS = "tokens"
    """Token ids with labels, a line of JSON per row."""
    PARQUET = "parquet"
    """The rows of TOKENS as Parquet."""

    @property
    def suffix(self) -> str:
        """The end of its files' names."""
        return "parquet" if self is Layout.PARQUET else "jsonl"
