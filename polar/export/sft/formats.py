"""Rows of a dataset as files: chat messages, or token ids with labels.

Equal rows give equal bytes. A column is only ever added.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from polar.export.sft.examples import Example
from polar.export.sft.layout import Layout

GROUP_TOKENS = 4_000_000
"""Most tokens of a Parquet row group: about 40 MB in memory."""


class RowFile(Protocol):
    """A file of rows, complete after `close`."""

    def add(self, example: Example) -> None:
        """Add a row. Raises OSError."""

    def close(self) -> None:
        """Write what is left. Raises OSError."""


def opened(path: Path, layout: Layout) -> RowFile:
    """A new file. Raises OSError."""
    return _ParquetFile(path) if layout is Layout.PARQUET else _JsonFile(path, layout)


class _JsonFile:
    """A line of JSON per row."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._file = path.open("wb")
        self._fields = _messages if layout is Layout.MESSAGES else _tokens

    def add(self, example: Example) -> None:
        self._file.write(msgspec.json.encode(self._fields(example) | _names(example)) + b"\n")

    def close(self) -> None:
        self._file.close()


SCHEMA = pa.schema(
    {
        "input_ids": pa.list_(pa.int32()),
        "labels": pa.list_(pa.int32()),
        "session_id": pa.string(),
        "task_id": pa.string(),
        "trace_id": pa.string(),
        "repository": pa.string(),
        "reward": pa.float64(),
    }
)


class _ParquetFile:
    """The rows of the format `tokens`."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._tokens = 0

    def add(self, example: Example) -> None:
        self._rows.append({"input_ids": example.token_ids, "labels": example.labels, **_names(example)})
        self._tokens += len(example.token_ids)
        if self._tokens >= GROUP_TOKENS:
            self._write()

    def close(self) -> None:
        self._write()
        self._writer.close()

    def _write(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=SCHEMA))
        self._rows, self._tokens = [], 0


def _messages(example: Example) -> dict[str, Any]:
    return {"messages": example.messages, **({"tools": example.tools} if example.tools else {})}


def _tokens(example: Example) -> dict[str, Any]:
    return {"input_ids": example.token_ids.tolist(), "labels": example.labels.tolist()}


def _names(example: Example) -> dict[str, Any]:
    return {
        "session_id": example.session_id,
        "task_id": example.task_id,
        "trace_id": example.trace_id,
        "repository": example.repository,
        "reward": example.reward,
    }
