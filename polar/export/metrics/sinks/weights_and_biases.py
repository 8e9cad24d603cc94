"""Weights & Biases: a run whose id is the name of Polar's run. WANDB_MODE, WANDB_API_KEY and the other variables of W&B hold.

A point is one row of the run's history, with its step and time in it. So a start finds the newest times in the summary that the server
keeps, or, offline, in the files of earlier starts, and continues at the row after them. A row is there whole or not at all.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import wandb
from wandb.proto.wandb_internal_pb2 import Record

from polar.export.metrics.curves import CURVES, Axis, Point, tag
from polar.export.metrics.sinks.base import SinkError

STEP = "step"
"""Name of a point's step, after its axis."""
AT = "at_ms"
"""Name of a point's time."""
ROW = "_step"
"""W&B's name of a row's number."""
HEADER_BYTES = 7
"""At the beginning of a file."""
BLOCK_BYTES = 32_768
PART = struct.Struct("<IHB")
"""Head of a part of a record: checksum, length, kind. Parts don't cross blocks."""
LAST_PARTS = (1, 4)
"""Kinds of a whole record, and of a record's last part."""


class WeightsAndBiases:
    """A run of a project."""

    def __init__(self, project: str, run: str) -> None:
        """Continues the run, or makes it. Raises SinkError."""
        options = wandb.Settings(console="off", disable_git=True, disable_code=True, x_disable_stats=True)
        try:
            self._run = wandb.init(project=project, id=run, name=run, resume="allow", settings=options)
        except wandb.Error as error:
            raise SinkError(f"W&B doesn't answer: {error}") from error
        for axis in Axis:
            for name in (STEP, AT):
                self._run.define_metric(f"{axis}/{name}", hidden=True)
            self._run.define_metric(f"{axis}/*", step_metric=f"{axis}/{STEP}")
        if self._run.offline:
            known = summary(Path(self._run.dir).parents[1].glob(f"*run-*-{run}/run-{run}.wandb"))
            self._next_row = int(known.get(ROW, -1)) + 1
        else:
            known = dict(self._run.summary)
            self._next_row = self._run.step
        self._written = {
            tag(axis, curve): int(known[f"{axis}/{AT}"]) for axis in Axis if f"{axis}/{AT}" in known for curve in CURVES
        }
        self.address = self._run.url or self._run.dir

    def written(self) -> Mapping[str, int]:
        """As `Sink.written`."""
        return self._written

    def write(self, point: Point) -> None:
        """As `Sink.write`. W&B's own process takes the row and repeats requests until the server has it."""
        place = {f"{point.axis}/{STEP}": point.step, f"{point.axis}/{AT}": point.at_ms}
        try:
            self._run.log({**point.values, **place}, step=self._next_row)
        except wandb.Error as error:
            raise SinkError(f"W&B doesn't take points: {error}") from error
        self._next_row += 1
        self._written |= {tag(point.axis, curve): point.at_ms for curve in CURVES}

    def close(self) -> None:
        """As `Sink.close`."""
        self._run.finish()


def summary(files: Iterator[Path]) -> dict[str, Any]:
    """The newest value of each metric in W&B's files of a run, by the numbers of their rows."""
    found: list[dict[str, Any]] = []
    for file in files:
        found += rows(file.read_bytes())
    newest: dict[str, Any] = {}
    for row in sorted(found, key=lambda one: int(one[ROW])):
        newest |= row
    return newest


def rows(data: bytes) -> Iterator[dict[str, Any]]:
    """The history in a file of W&B: protobuf records in the format of LevelDB's log. A record that a crash cut off is left out."""
    at, record = HEADER_BYTES, b""
    while at + PART.size <= len(data):
        room = BLOCK_BYTES - at % BLOCK_BYTES
        if room < PART.size:
            at += room
            continue
        _, length, kind = PART.unpack_from(data, at)
        begin, at = at + PART.size, at + PART.size + length
        if kind == 0 or at > len(data):
            return
        record += data[begin:at]
        if kind in LAST_PARTS:
            made, record = Record.FromString(record), b""
            if made.WhichOneof("record_type") == "history":
                yield {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in made.history.item}
