"""Gathers decisions for a transaction, and splits a decision that is too large for one.

A transaction holds at most 500 sessions and 8 MiB (protocol 3). A decision that no longer fits goes to the next transaction, so each
commit lies between two inputs and holds the position between them. A single decision beyond the limits (a task of a thousand samples, its
cancel, its early stop) takes several transactions, of which only the last holds the position. After a crash in between, the next owner
decides the same fact again, over a table that holds a part of its result. The result is the same, because

- the last transaction holds the task's row: until then the task isn't known, not cancelled, or one trajectory short;
- the last transaction also holds the last session of the decision, which is the session that the fact is about;
- sessions that exist or are ending are left unchanged: `initial_sessions` keeps rows that it finds, a cancel passes over sessions that are
  closing or being built, so no session is opened or built twice;
- a session's `Open` and `Build` are in the transaction of its row.
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

    record: Open | Build | CloseGroup
    value: bytes

    @property
    def key(self) -> str:
        """The record's key on the log."""
        return self.record.task_id if isinstance(self.record, CloseGroup) else self.record.session_id

    @property
    def row(self) -> str:
        """Table key of the row that must be in the same transaction."""
        return f"{'task' if isinstance(self.record, CloseGroup) else 'session'}:{self.key}"


@dataclass(slots=True)
class Transaction:
    """The rows and records of one transaction."""

    rows: Rows
    records: list[Record]
    is_last: bool = True
    """The batch is complete with this transaction, so it may move the position."""


@dataclass(slots=True)
class Batch:
    """The decisions between two commits."""

    sessions: Rows = field(default_factory=dict)
    tasks: Rows = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    size: int = 0
    """Bytes of all rows and records, including rows that have changed again since."""

    @classmethod
    def of(cls, decision: Decision) -> Batch:
        """A batch of one decision."""
        batch = cls()
        for session in decision.sessions:
            key = f"session:{session.session_id}"
            # The newest state of a row counts, at its newest place: the fact's own session must be last.
            batch.sessions.pop(key, None)
            batch.sessions[key] = value = encode(session)
            batch.size += len(value)
        for task in decision.tasks:
            batch.tasks[f"task:{task.task_id}"] = value = encode(task)
            batch.size += len(value)
        for key in decision.deleted:
            (batch.tasks if key.startswith("task:") else batch.sessions)[key] = None
        for record in decision.records:
            value = encode(record)
            batch.records.append(Record(record, value))
            batch.size += len(value)
        batch.commands += decision.commands
        return batch

    def fits(self, other: Batch) -> bool:
        """Whether one transaction may hold both."""
        return len(self.sessions) + len(other.sessions) <= SESSIONS and self.size + other.size <= BYTES

    def add(self, other: Batch) -> None:
        self.sessions.update(other.sessions)
        self.tasks.update(other.tasks)
        self.records += other.records
        self.commands += other.commands
        self.size += other.size

    @property
    def is_empty(self) -> bool:
        return not (self.sessions or self.tasks or self.records)

    def transactions(self) -> Iterator[Transaction]:
        """The batch in one transaction, or in several if it is a single large decision."""
        if len(self.sessions) < 2 or (len(self.sessions) <= SESSIONS and self.size <= BYTES):
            yield Transaction(self.sessions | self.tasks, self.records)
            return
        by_row: dict[str, list[Record]] = {}
        for record in self.records:
            by_row.setdefault(record.row, []).append(record)
        *others, last = self.sessions
        part, size = Transaction({}, [], is_last=False), 0
        for key in others:
            records = by_row.get(key, [])
            added = len(self.sessions[key] or b"") + sum(len(record.value) for record in records)
            if part.rows and (len(part.rows) == SESSIONS or size + added > BYTES):
                yield part
                part, size = Transaction({}, [], is_last=False), 0
            part.rows[key] = self.sessions[key]
            part.records += records
            size += added
        yield part
        closing = [record for key in (last, *self.tasks) for record in by_row.get(key, [])]
        yield Transaction({last: self.sessions[last]} | self.tasks, closing)
