"""The open sessions of a partition, their calls and Builds: a fold over `polar.completions` in log order (protocol 23).

Invariant: a fold that starts at the oldest open session's offset reaches the same state, so a crash costs reading and nothing else.
Calls are kept in memory up to a limit in bytes; beyond it, only their session's offset is. `builder.py` builds and emits.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from topics.calls.claim_records import CallStanding, ClaimRecords
from topics.completions import Build, CallRecord, CloseGroup, Disowned, Emitted, Open
from topics.types.completion import JUDGE, Completion

EMITTED = 100_000
"""Emitted sessions remembered after a gap, some 18 MB. A repeated Build follows its `Emitted` within minutes, so fewer
sessions are emitted in between."""


@dataclass
class OpenSession:
    """A session between its `Open` and its `Emitted`."""

    opened: Open
    offset: int
    """Of the `Open`."""
    records: ClaimRecords
    calls: list[Completion] = field(default_factory=list)
    size: int = 0
    """Bytes of `calls`."""
    is_spilled: bool = False
    """Its calls are not in memory."""
    late: int = 0
    is_gap: bool = False
    """Its first call has left the log."""

    @property
    def build(self) -> Build | None:
        """The claim's `Build`; None until it comes."""
        return self.records.build


class OpenSessions:
    """The fold over one partition."""

    def __init__(self, memory_limit: int, ignored: Counter[str] | None = None) -> None:
        """`memory_limit`: bytes of calls to keep in memory. `ignored` counts records passed over, by reason."""
        self._open: dict[str, OpenSession] = {}
        self._groups: dict[str, tuple[int, CloseGroup]] = {}
        self._size = 0
        self._memory_limit = memory_limit
        self._emitted: OrderedDict[str, None] = OrderedDict()
        """Session ids, the newest last; only known if the log has a gap."""
        self.position = 0
        """Offset of the next record."""
        self.has_gap = False
        """The log lost records before they were read: only `Emitted` shows whether a Build without an Open is old or due."""
        self.ignored = Counter() if ignored is None else ignored

    def take(self, record: CallRecord, offset: int, size: int) -> None:
        """Apply one record of `size` bytes."""
        self.position = offset + 1
        match record:
            case Open():
                self._drop(record.session_id)
                self._open[record.session_id] = OpenSession(record, offset, ClaimRecords.of(record))
            case Completion():
                self._call(record, size)
            case Disowned() if record.session_id in self._open:
                self._open[record.session_id].records.take(record)
            case Build():
                session = self._open.get(record.session_id)
                if session is None and self.has_gap and record.session_id not in self._emitted:
                    opened = Open(record.session_id, record.attempt, record.claim_id)
                    session = OpenSession(opened, offset, ClaimRecords.of(opened), is_gap=True)
                    self._open[record.session_id] = session
                if session is None or session.opened.claim_id != record.claim_id:
                    self.ignored["build_without_open"] += 1
                else:
                    session.records.take(record)
            case CloseGroup():
                self._groups[record.task_id] = (offset, record)
            case Emitted(session_id=None):
                self._groups.pop(record.task_id, None)
            case Emitted(session_id=str(session_id)):
                self.emitted(session_id, record.task_id)

    def named(self, session_id: str) -> OpenSession | None:
        """The open session of that id."""
        return self._open.get(session_id)

    @property
    def unfinished(self) -> int:
        """Number of sessions without a `Build`."""
        return sum(session.build is None for session in self._open.values())

    def due(self) -> list[OpenSession]:
        """Sessions with a `Build`."""
        return [session for session in self._open.values() if session.build is not None]

    def due_groups(self) -> list[CloseGroup]:
        return [group for _, group in self._groups.values()]

    def oldest(self) -> int:
        """Offset from which the next owner must read to know all open sessions and groups."""
        offsets = [session.offset for session in self._open.values()]
        offsets += [offset for offset, _ in self._groups.values()]
        return min(offsets, default=self.position)

    def emitted(self, session_id: str | None, task_id: str) -> None:
        """The transaction with the `Emitted` of a session (None: of the task's group) is committed."""
        if session_id is None:
            self._groups.pop(task_id, None)
        else:
            self._drop(session_id)
            if self.has_gap:
                self._emitted[session_id] = None
                self._emitted.move_to_end(session_id)
                if len(self._emitted) > EMITTED:
                    self._emitted.popitem(last=False)

    def _call(self, call: Completion, size: int) -> None:
        session = self._open.get(call.session_id)
        standing = CallStanding.OTHER_CLAIM if session is None else session.records.take(call)
        if session is None or standing is CallStanding.OTHER_CLAIM:
            self.ignored["judge" if call.kind == JUDGE else "call_outside"] += 1
        elif standing is CallStanding.LATE:
            session.late += 1
        elif standing is CallStanding.COUNTS and (session.is_spilled or self._size + size > self._memory_limit):
            self._spill(session)
        elif standing is CallStanding.COUNTS:
            session.calls.append(call)
            session.size += size
            self._size += size

    def _spill(self, session: OpenSession) -> None:
        self._size -= session.size
        session.size = 0
        session.calls.clear()
        session.is_spilled = True

    def _drop(self, session_id: str) -> None:
        session = self._open.pop(session_id, None)
        if session is not None:
            self._size -= session.size
