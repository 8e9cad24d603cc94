"""TensorBoard: a folder of event files, written with `tensorboardX`.

A point is one record of an event file, which is there whole or not at all: a record that a crash cut off has a wrong checksum, and
TensorBoard skips it as `written` does. Each start writes a file of its own.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from polar.export.metrics.curves import Point
from polar.export.metrics.sinks.base import SinkError

FILES = "events.out.tfevents.*"
NAME = "events"
LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")


class TensorBoard:
    """A folder for one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"tensorboard --logdir {folder}"
        self._writer: EventsWriter | None = None

    def written(self) -> Mapping[str, int]:
        """As `Sink.written`."""
        newest: dict[str, int] = {}
        try:
            for file in sorted(self._folder.glob(FILES)):
                for event in events(file.read_bytes()):
                    at_ms = round(event.wall_time * 1000)
                    for value in event.summary.value:
                        newest[value.tag] = max(at_ms, newest.get(value.tag, at_ms))
        except OSError as error:
            raise SinkError(f"{self._folder} can't be read: {error}") from error
        return newest

    def write(self, point: Point) -> None:
        """As `Sink.write`."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
        try:
            if self._writer is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                # tensorboardX names a file for the second and the host: two starts within a second would write into one.
                self._writer = EventsWriter(str(self._folder / NAME), f".{os.getpid()}.{time.time_ns()}")
            self._writer.write_event(
                Event(wall_time=point.at_ms / 1000, step=point.step, summary=Summary(value=values))
            )
            self._writer.flush()
        except OSError as error:
            raise SinkError(f"{self._folder} can't be written: {error}") from error

    def close(self) -> None:
        """As `Sink.close`."""
        if self._writer is not None:
            self._writer.close()


def events(data: bytes) -> Iterator[Event]:
    """The whole records of an event file: each is its length, a checksum of the length, an `Event`, and a checksum of it."""
    at = 0
    while at + LENGTH.size + CHECKSUM.size <= len(data):
        (length,) = LENGTH.unpack_from(data, at)
        begin = at + LENGTH.size + CHECKSUM.size
        end = begin + length
        if end + CHECKSUM.size > len(data):
            return
        if CHECKSUM.unpack_from(data, end)[0] != masked_crc32c(data[begin:end]):
            return
        yield Event.FromString(data[begin:end])
        at = end + CHECKSUM.size
