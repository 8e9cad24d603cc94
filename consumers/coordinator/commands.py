"""What `decide` takes in beside facts, and what it gives out.

Inputs that are no facts come from this process: a slot lent, a lease lost, a deadline passed. They are not on the log, since the next
owner comes to them by itself. Outputs are rows of the table, records for the same transaction, and commands sent after the commit.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from consumers.coordinator.deadlines import Pauses
from topics.completions import Build, CloseGroup, Open
from topics.control import CloseKey, Discard, Grant, Revoke
from topics.events import Fact, TaskSubmitted
from topics.types.session import SessionState, Stage, TaskState


@dataclass(frozen=True, slots=True)
class SlotAssigned:
    """One free slot of a pool is lent to this partition; its ticket goes to `queue_partition`."""

    stage: Stage
    pool: str
    worker_id: str
    """Whom the ticket is steered to; anyone of the group may take it."""
    queue_partition: int
    priority: int = 0
    """Of the session that it is lent for: none of a lower one is to have it."""
    user: str = ""
    """Whose turn it is, at that priority."""


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """The lease of a granted claim ended: its worker is gone, or no longer holds it (protocol 12)."""

    session_id: str
    claim_id: str


@dataclass(frozen=True, slots=True)
class PoolOffline:
    """No run worker of this session's pool has lived for 10 min (protocol 10)."""

    session_id: str


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The state that this session is in has lasted its time."""

    session_id: str


@dataclass(frozen=True, slots=True)
class TaskExpired:
    """`polar.tasks` no longer holds this finished task (protocol 32)."""

    task_id: str


@dataclass(frozen=True, slots=True)
class FleetPaused:
    """Model calls wait: the clock of runs stands still (protocol 18)."""


@dataclass(frozen=True, slots=True)
class FleetResumed:
    """It goes on."""


Input = Fact | SlotAssigned | ClaimLost | PoolOffline | DeadlinePassed | TaskExpired | FleetPaused | FleetResumed


@dataclass(frozen=True, slots=True)
class ReleaseTicket:
    """Put this session's ticket for the stage that it waits for on the queue."""

    session_id: str
    stage: Stage
    worker_id: str
    queue_partition: int


@dataclass(frozen=True, slots=True)
class RejectTask:
    """A task id was used again with another body: a dead letter."""

    fact: TaskSubmitted
    reason: str


Command = ReleaseTicket | RejectTask | Grant | Revoke | CloseKey | Discard
"""Sent after the commit, idempotent."""


class Decision(msgspec.Struct, frozen=True):
    """All that one input changes. A struct, as one is made for every fact: a frozen dataclass takes ten times as long."""

    tasks: tuple[TaskState, ...] = ()
    sessions: tuple[SessionState, ...] = ()
    forgotten: tuple[str, ...] = ()
    """Table keys to tombstone."""
    records: tuple[Open | Build | CloseGroup, ...] = ()
    """For `polar.completions`, in this order, in the same transaction."""
    commands: tuple[Command, ...] = ()
    pauses: Pauses | None = None
    """Of the fleet, where they have changed."""
    skipped: str | None = None
    """Reason code where the table doesn't allow the input (protocol 6)."""


NOTHING = Decision()
