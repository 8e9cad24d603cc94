"""Decisions gathered for a transaction, and cut into several where one of them asks for more than a transaction may hold.

A transaction holds at most 500 sessions and 8 MiB (protocol 3). A decision that doesn't fit any more waits for the next one, so that
each commit lies between two inputs, with the position that they lead to. A single decision beyond that (a task of a thousand samples,
its cancel, its early stop) takes several transactions, of which only the last holds the position: after a crash in between, the next
owner decides the same fact again, over a table that holds a part of what it led to. That comes to the same end, since

- the last part holds the rows of tasks, so that until then the task isn't known, or cancelled, or one trajectory further;
- it holds the last session of the decision, too, which is the one that the fact is about;
- sessions that are there or on their way to an end are left alone: `first_rows` keeps rows that it finds, a cancel passes over what is
  closing or being built. So no session is opened or built twice;
- a session's `Open` and `Build` are in the part of its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from consumers.coordinator.commands import Command, Decision
from topics.completions import Build, CloseGroup, Open
from topics.contract.codec import encode
from topics.contract.topic import MIB

SESSIONS = 500
BYTES = 8 * MIB

Rows = dict[str, bytes | None]
"""By table key: a row, or None for a tombstone."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record for `polar.completions`."""

    row: str
    """Key of the row that it goes with."""
    record: Open | Build | CloseGroup
    value: bytes


@dataclass(slots=True)
class Part:
    """What one transaction holds."""

    rows: Rows
    records: list[Record]
    is_last: bool = True
    """With it all is written: the position may move."""


@dataclass(slots=True)
class Batch:
    """What inputs between two commits have led to."""

    sessions: Rows = field(default_factory=dict)
    tasks: Rows = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    size: int = 0
    """Bytes of all rows and records, those of rows that have changed since included."""

    @classmethod
    def of(cls, decision: Decision) -> Batch:
        """One decision's."""
        batch = cls()
        for session in decision.sessions:
            key = f"session:{session.session_id}"
            # The newest state of a row counts, at its newest place: the fact's own session is last.
            batch.sessions.pop(key, None)
            batch.sessions[key] = value = encode(session)
            batch.size += len(value)
        for task in decision.tasks:
            batch.tasks[f"task:{task.task_id}"] = value = encode(task)
            batch.size += len(value)
        for key in decision.forgotten:
            (batch.tasks if key.startswith("task:") else batch.sessions)[key] = None
        for record in decision.records:
            value = encode(record)
            batch.records.append(Record(_row_of(record), record, value))
            batch.size += len(value)
        batch.commands += decision.commands
        return batch

    def fits(self, more: Batch) -> bool:
        """Whether one transaction may hold both."""
        return len(self.sessions) + len(more.sessions) <= SESSIONS and self.size + more.size <= BYTES

    def add(self, more: Batch) -> None:
        self.sessions.update(more.sessions)
        self.tasks.update(more.tasks)
        self.records += more.records
        self.commands += more.commands
        self.size += more.size

    @property
    def is_empty(self) -> bool:
        return not (self.sessions or self.tasks or self.records)

    def parts(self) -> Iterator[Part]:
        """One transaction's worth after the other; only a batch of a single decision has more than one."""
        if len(self.sessions) < 2 or (len(self.sessions) <= SESSIONS and self.size <= BYTES):
            yield Part(self.sessions | self.tasks, self.records)
            return
        of_row: dict[str, list[Record]] = {}
        for record in self.records:
            of_row.setdefault(record.row, []).append(record)
        *others, last = self.sessions
        part, size = Part({}, [], is_last=False), 0
        for key in others:
            records = of_row.get(key, [])
            more = len(self.sessions[key] or b"") + sum(len(record.value) for record in records)
            if part.rows and (len(part.rows) == SESSIONS or size + more > BYTES):
                yield part
                part, size = Part({}, [], is_last=False), 0
            part.rows[key] = self.sessions[key]
            part.records += records
            size += more
        yield part
        closing = [record for key in (last, *self.tasks) for record in of_row.get(key, [])]
        yield Part({last: self.sessions[last]} | self.tasks, closing)


def _row_of(record: Open | Build | CloseGroup) -> str:
    return f"task:{record.task_id}" if isinstance(record, CloseGroup) else f"session:{record.session_id}"
