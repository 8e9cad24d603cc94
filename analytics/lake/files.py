"""Rows as Parquet: columns built without a Python object for each token, encoded for what tokens and logprobs are.

Invariant: a file that `write` returned is whole and on the disk. A row with a value that its column can't hold (an integer past 64
bits, bytes that are no whole number of tokens) is left out and counted, never the rows beside it. Names and commits are others'.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analytics.lake.rows import Row
from analytics.lake.schema import IDS, INSTANT, LOGPROBS, PACKED, TEXT, Column, Table
from topics.types import tokens

LAST_MS = 253_402_300_799_999
"""The year 9999's end; readers' date types go no further."""
COMPRESSION_LEVEL = 3
LISTED = "element"
"""What Parquet calls a list's values."""


def arrow(table: Table, rows: Sequence[Row]) -> tuple[Any, list[Row]]:
    """A pyarrow Table of the rows, and those that don't fit their columns."""
    try:
        return pa.table([_array(column, rows) for column in table.columns], schema=table.arrow), []
    except (ValueError, OverflowError, TypeError, pa.ArrowException):
        if len(rows) == 1:
            return table.arrow.empty_table(), list(rows)
    middle = len(rows) // 2
    (head, bad), (tail, worse) = arrow(table, rows[:middle]), arrow(table, rows[middle:])
    return pa.concat_tables([head, tail]), bad + worse


def _array(column: Column, rows: Sequence[Row]) -> Any:
    values = [row[column.name] for row in rows]
    if column.type in PACKED:
        return _lists(column.type, values)
    if column.type == INSTANT:
        values = [at if at is not None and 0 <= at <= LAST_MS else None for at in values]
    elif column.type == TEXT:
        values = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]
    elif pa.types.is_map(column.type):
        values = [None if value is None else list(value.items()) for value in values]
    return pa.array(values, column.type)


def _lists(of: Any, values: Sequence[bytes | None]) -> Any:
    """A ListArray of packed values. Raises ValueError where one isn't whole."""
    sizes = np.fromiter((len(value) if value else 0 for value in values), np.int64, len(values))
    if (sizes % tokens.WIDTH).any():
        raise ValueError(f"packed values are {tokens.WIDTH} bytes each")
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes // tokens.WIDTH, out=offsets[1:])
    dtype = tokens.IDS if of == IDS else tokens.LOGPROBS
    flat = np.frombuffer(b"".join(value for value in values if value), dtype)
    mask = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), type=of, mask=mask)


def options(schema: Any) -> dict[str, Any]:
    """How a table's columns are encoded (pyarrow's ParquetWriter).

    Of ids in texts zstd finds what is said again, 0.9 to 1.1 bytes a token; dictionaries and split bytes hide it (up to 1.5).
    Logprobs say nothing again: split by byte their signs and exponents fall together, 3.4 bytes instead of 3.75.
    """
    packed = [field.name for field in schema if field.type in PACKED]
    others = [field.name for field in schema if field.name not in packed]
    split = [f"{name}.list.{LISTED}" for name in packed if schema.field(name).type == LOGPROBS]
    return {
        "compression": "zstd",
        "compression_level": COMPRESSION_LEVEL,
        "use_dictionary": others,
        "column_encoding": dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
        "write_statistics": others,
    }


def write(path: Path, table: Any) -> int:
    """Write a pyarrow Table as a new file, synced; its size in bytes. Raises OSError, and leaves nothing then."""
    with path.open("xb") as file:
        try:
            pq.write_table(table, file, **options(table.schema))
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return file.tell()
