"""The records of a claim on `polar.completions` that count, for every reader of a claim's log: builder, recovering proxy, `polar show`.

A newer `Open` of the session replaces the claim, calls of other claims don't count, of one call id the first record counts, and what
follows the claim's `Build` is late (protocol 23). Pure: records in, decisions out; which calls are kept in memory is the reader's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from topics.completions import Build, CallRecord, Disowned, Open
from topics.types.completion import Completion


class CallStanding(Enum):
    """How a call's record stands to the claim."""

    COUNTS = auto()
    REPEATED = auto()
    """An earlier record has its call id."""
    LATE = auto()
    """It lies behind the claim's `Build`, whether or not an earlier record has its call id."""
    OTHER_CLAIM = auto()


@dataclass
class ClaimRecords:
    """One claim, its session's records taken in log order: from its `Open` on, or from any later offset."""

    claim_id: str
    attempt: int
    disowned: dict[str, str] = field(default_factory=dict)
    """Reason by id of the calls that were given up before the `Build`; the first reason counts."""
    build: Build | None = None
    """The claim's."""
    is_over: bool = False
    """The attempt was built, or a later one opened: no later call of the claim counts."""
    _call_ids: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, opened: Open) -> ClaimRecords:
        """The claim that an `Open` begins, in place of its session's last one."""
        return cls(opened.claim_id, opened.attempt)

    def take(self, record: CallRecord) -> CallStanding | None:
        """Take in one record of the session; the standing of a call, None for other records."""
        match record:
            case Completion():
                return self._standing(record)
            case Disowned() if record.claim_id == self.claim_id and self.build is None:
                self.disowned.setdefault(record.call_id, record.reason)
            case Build():
                if record.claim_id == self.claim_id and self.build is None:
                    self.build = record
                self.is_over |= record.attempt >= self.attempt
            case Open():
                self.is_over |= record.attempt > self.attempt
        return None

    def _standing(self, call: Completion) -> CallStanding:
        if call.claim_id != self.claim_id:
            return CallStanding.OTHER_CLAIM
        if self.build is not None:
            return CallStanding.LATE
        if call.call_id in self._call_ids:
            return CallStanding.REPEATED
        self._call_ids.add(call.call_id)
        return CallStanding.COUNTS
