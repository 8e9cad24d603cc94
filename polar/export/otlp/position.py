"""How far sessions were sent: a small file, replaced as a whole after each portion that the backend has taken.

A position is that of trajectories on their topic, for each partition. Offsets begin anew when Kafka's topics are lost or restored from an
older copy, while the lake keeps its rows; so a partition also has the time after which its offsets count.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from polar.export.sessions import Selection
from topics.environment import private_files
from topics.types.errors import InputError

OPTION = "--position"


class Reached(msgspec.Struct, frozen=True):
    """Where one partition stands."""

    next_offset: int = 0
    newest_ms: int = -1
    """Unix ms of the newest record that was passed."""
    since_ms: int = -1
    """Only newer records count: those up to it belong to an earlier log."""

    def passed(self, offset: int, logged_ms: int) -> Reached:
        """The position behind a record."""
        return Reached(max(self.next_offset, offset + 1), max(self.newest_ms, logged_ms), self.since_ms)

    def of_new_log(self) -> Reached:
        """The position at the beginning of a log that was made anew."""
        return Reached(0, self.newest_ms, self.newest_ms)


class Position(msgspec.Struct, frozen=True):
    """A file of positions, and the sessions that they are positions in."""

    cluster: str
    """The lake's Kafka cluster."""
    selection: str
    """The selection that it is a position in."""
    partitions: dict[int, Reached] = {}

    def with_partitions(self, changed: dict[int, Reached]) -> Position:
        return msgspec.structs.replace(self, partitions={**self.partitions, **changed})


def described(selection: Selection, namespace: str) -> str:
    """One text for all that decides which sessions are sent."""
    fields = [namespace, list(selection.tasks), selection.run, selection.harness, selection.output, selection.where]
    return msgspec.json.encode(fields).decode()


def load(path: Path | None, cluster: str, selection: str) -> Position:
    """The position in the file; the beginning if there is none. Raises InputError for a file of something else, and for one that can't
    be written later."""
    new = Position(cluster, selection)
    if path is None:
        return new
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Position)
    except FileNotFoundError:
        save(path, new)
        return new
    except OSError as error:
        raise InputError(OPTION, str(path), f"can't be read: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(OPTION, str(path), f"isn't a position: {error}; name another file") from None
    if not found.partitions:
        # Nothing was sent; before its first record the lake doesn't know its cluster.
        return new
    for field, mine, theirs in (("Kafka cluster", cluster, found.cluster), ("selection", selection, found.selection)):
        if mine != theirs:
            raise InputError(OPTION, str(path), f"is of another {field}, {theirs}; name another file")
    return found


def save(path: Path | None, position: Position) -> None:
    """Write the position durably. Raises InputError."""
    if path is None:
        return
    try:
        private_files.replace(path, msgspec.json.encode(position), is_durable=True)
    except OSError as error:
        raise InputError(OPTION, str(path), f"can't be written: {error}") from None


def condition(partitions: Iterable[tuple[int, Reached]]) -> str:
    """SQL: the rows of `lake.trajectories` that lie behind the position."""
    passed = [
        f"(log_partition = {number} AND (log_offset < {reached.next_offset} OR epoch_ms(logged_at) <= {reached.since_ms}))"
        for number, reached in partitions
    ]
    return f"NOT ({' OR '.join(passed)})" if passed else "true"
