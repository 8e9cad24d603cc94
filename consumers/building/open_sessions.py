"""Which sessions of a partition are open, and what was asked for: a fold over `polar.completions`, in log order (protocol 23).

Taken up again from the oldest open session's offset it comes to the same, so that a crash costs reading and nothing else. It holds
calls within a budget of bytes, beyond it their offsets alone. Building and emitting are the builder's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from topics.calls.claim_records import CallStanding, ClaimRecords
from topics.completions import Build, CallRecord, CloseGroup, Disowned, Emitted, Open
from topics.types.completion import Completion


@dataclass
class OpenSession:
    """A session between its `Open` and its `Emitted`."""

    opened: Open
    offset: int
    """Of the `Open`."""
    records: ClaimRecords
    calls: list[Completion] = field(default_factory=list)
    held: int = 0
    """Bytes of `calls`."""
    is_spilled: bool = False
    """Its calls are not in memory."""
    late: int = 0
    is_gap: bool = False
    """Its first call has left the log."""

    @property
    def build(self) -> Build | None:
        """What was asked for; None until then."""
        return self.records.build


class Sessions:
    """Which sessions are open, and what was asked for: a fold over one partition of `polar.completions`, in log order."""

    def __init__(self, held_bytes: int, ignored: Counter[str] | None = None) -> None:
        """`ignored` counts records passed over, by reason."""
        self._open: dict[str, OpenSession] = {}
        self._groups: dict[str, tuple[int, CloseGroup]] = {}
        self._held = 0
        self._held_limit = held_bytes
        self._out: set[str] = set()
        self.position = 0
        """Offset of the next record."""
        self.has_gap = False
        """The log lost records that were not read: a Build whose Open is unknown can't be told from an old one but by `Emitted`."""
        self.ignored = Counter() if ignored is None else ignored

    def take(self, record: CallRecord, offset: int, size: int) -> None:
        """Fold one record of `size` bytes in."""
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
                if session is None and self.has_gap and record.session_id not in self._out:
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
        """Sessions whose trajectory isn't asked for yet."""
        return sum(session.build is None for session in self._open.values())

    def due(self) -> list[OpenSession]:
        """Sessions whose trajectory is asked for."""
        return [session for session in self._open.values() if session.build is not None]

    def due_groups(self) -> list[CloseGroup]:
        return [group for _, group in self._groups.values()]

    def oldest(self) -> int:
        """Offset from which a next owner must read to know all that is open now."""
        offsets = [session.offset for session in self._open.values()]
        offsets += [offset for offset, _ in self._groups.values()]
        return min(offsets, default=self.position)

    def emitted(self, session_id: str | None, task_id: str) -> None:
        """The transaction with its `Emitted` is committed."""
        if session_id is None:
            self._groups.pop(task_id, None)
        else:
            self._drop(session_id)
            if self.has_gap:
                self._out.add(session_id)

    def _call(self, call: Completion, size: int) -> None:
        session = self._open.get(call.session_id)
        standing = CallStanding.OTHER_CLAIM if session is None else session.records.take(call)
        if session is None or standing is CallStanding.OTHER_CLAIM:
            self.ignored["call_outside"] += 1
        elif standing is CallStanding.LATE:
            session.late += 1
        elif standing is CallStanding.COUNTS and (session.is_spilled or self._held + size > self._held_limit):
            self._spill(session)
        elif standing is CallStanding.COUNTS:
            session.calls.append(call)
            session.held += size
            self._held += size

    def _spill(self, session: OpenSession) -> None:
        self._held -= session.held
        session.held = 0
        session.calls.clear()
        session.is_spilled = True

    def _drop(self, session_id: str) -> None:
        session = self._open.pop(session_id, None)
        if session is not None:
            self._held -= session.held
