"""Converts rows to Parquet without a Python object per token, with encodings that suit token ids and logprobs.

Invariant: after `write`, the file is complete and synced. A row with a value that doesn't fit its column (an integer of over 64 bits, bytes
that aren't a multiple of a token's size) is left out and counted; other rows aren't affected.
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
"""The end of the year 9999, the limit of readers' date types."""
COMPRESSION_LEVEL = 3
LISTED = "element"
"""Parquet's name of a list's values."""


def arrow(table: Table, rows: Sequence[Row]) -> tuple[Any, list[Row]]:
    """A pyarrow Table of the rows, and the rows that don't fit their columns."""
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
    """A ListArray of packed values. Raises ValueError for a size that isn't a multiple of a value's."""
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
    """Encodings of a table's columns, for pyarrow's ParquetWriter.

    zstd finds repetitions in token ids: 0.9 to 1.1 bytes per token; dictionaries and byte splitting hide them (up to 1.5 bytes). Logprobs
    don't repeat; byte splitting groups their signs and exponents: 3.4 instead of 3.75 bytes.
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
    """Write a pyarrow Table as a new file, synced; returns its size in bytes. Raises OSError, and then leaves no file."""
    with path.open("xb") as file:
        try:
            pq.write_table(table, file, **options(table.schema))
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return file.tell()
