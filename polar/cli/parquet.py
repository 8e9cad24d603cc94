"""Trajectories as a Parquet file on standard output, row by row.

A row has the fields of a line of `trajectories --format jsonl`, with types and with all defaults written out. Columns may only be added.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from topics.types.errors import InputError

TEXT, INT, REAL = pa.string(), pa.int64(), pa.float64()
COUNTS = pa.map_(TEXT, INT)
GROUP_TOKENS = 4_000_000
"""Most tokens of a row group: about 40 MB in memory."""
GROUP_ROWS = 1000
"""Most rows of a row group."""


def stdout() -> BinaryIO:
    """Standard output for binary data. Raises InputError if it is a terminal."""
    if sys.stdout.isatty():
        raise InputError("--format", "parquet", "a terminal can't show Parquet; write it to a file: … > answer.parquet")
    return sys.stdout.buffer


def _struct(**fields: Any) -> Any:
    return pa.struct(list(fields.items()))


SAMPLING = _struct(
    temperature=REAL, top_p=REAL, top_k=INT, min_p=REAL, presence_penalty=REAL, frequency_penalty=REAL, repetition_penalty=REAL,
    seed=INT, max_tokens=INT, truncated=pa.bool_(), grammar=pa.bool_(), grammar_source=TEXT, stop=pa.list_(TEXT),
    logit_bias=pa.map_(TEXT, REAL),
)  # fmt: skip
CALL = _struct(
    call_id=TEXT, start=INT, end=INT, sampling=SAMPLING, policy_version=INT, publication=INT, engine=TEXT, logprobs_mode=TEXT,
    has_media=pa.bool_(), plain=pa.bool_(),
)  # fmt: skip
TRACE = _struct(
    trace_id=TEXT,
    token_ids=pa.list_(pa.int32()),
    loss_mask=pa.list_(pa.uint8()),
    logprobs=pa.list_(pa.float32()),
    policy_versions=pa.list_(INT),
    calls=pa.list_(CALL),
    kind=TEXT,
    reward=REAL,
    finish_reason=TEXT,
    media=pa.list_(_struct(digest=TEXT, kind=TEXT, position=INT, media_type=TEXT, blob=TEXT, unproven=pa.bool_())),
)
STATS = _struct(
    calls=INT, answered=INT, traces=INT, tokens=INT, sampled_tokens=INT, trainable_tokens=INT,
    masked_tokens=COUNTS, branches=COUNTS, drift=COUNTS, late_calls=INT,
)  # fmt: skip
SCHEMA = pa.schema(
    {
        "session_id": TEXT,
        "task_id": TEXT,
        "sample_index": INT,
        "num_samples": INT,
        "attempt": INT,
        "status": TEXT,
        "reward": REAL,
        "error": _struct(stage=TEXT, kind=TEXT, code=TEXT, message=TEXT, retryable=pa.bool_()),
        "builder": TEXT,
        "harness": TEXT,
        "traces": pa.list_(TRACE),
        "stats": STATS,
        "metadata": TEXT,
        "run": TEXT,
        "label": TEXT,
        "side_calls": INT,
    }
)
"""`metadata` holds JSON text."""


class TrajectoryFile:
    """A Parquet file of trajectories, complete at the end of its context."""

    def __init__(self, out: BinaryIO) -> None:
        self._writer = pq.ParquetWriter(out, SCHEMA, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._tokens = 0

    def add(self, fields: Mapping[str, Any]) -> None:
        """Add a row: the `fields` of a trajectory. Raises OSError if it can't be written."""
        counts = {
            name: list(value.items()) if isinstance(value, dict) else value for name, value in fields["stats"].items()
        }
        row = {**fields, "stats": counts, "metadata": fields["metadata"].decode()}
        self._rows.append(row)
        self._tokens += sum(len(trace["token_ids"]) for trace in row["traces"])
        if self._tokens >= GROUP_TOKENS or len(self._rows) >= GROUP_ROWS:
            self._write()

    def __enter__(self) -> TrajectoryFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()
        self._writer.close()

    def _write(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=SCHEMA))
        self._rows, self._tokens = [], 0
