"""The inputs of `decide` other than facts, and its output.

Inputs that are no facts come from this process: a slot assigned, a lease lost, a deadline passed. They aren't on the log, because the next
owner of the partition arrives at them by itself. The output is rows of the table, records for the same transaction, and commands that are
sent after the commit.
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
    """The scheduler assigned a free slot to this partition; its ticket goes to `queue_partition`."""

    stage: Stage
    pool: str
    worker_id: str
    """The worker that the ticket is sent to; any worker of the group may claim it."""
    queue_partition: int
    priority: int = 0
    """No session of a lower priority may use the slot."""
    user: str = ""
    """The user whose turn it is at that priority."""


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """The lease of a granted claim ended: its worker is gone, or no longer lists the claim (protocol 12)."""

    session_id: str
    claim_id: str


@dataclass(frozen=True, slots=True)
class PoolOffline:
    """No run worker of this session's pool has lived for 10 min (protocol 10)."""

    session_id: str


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The deadline of the session's phase has passed."""

    session_id: str


@dataclass(frozen=True, slots=True)
class TaskExpired:
    """`polar.tasks` no longer holds this finished task (protocol 32)."""

    task_id: str


@dataclass(frozen=True, slots=True)
class FleetPaused:
    """Model calls wait, so the run clock stands still (protocol 18)."""


@dataclass(frozen=True, slots=True)
class FleetResumed:
    """The run clock continues."""


Input = Fact | SlotAssigned | ClaimLost | PoolOffline | DeadlinePassed | TaskExpired | FleetPaused | FleetResumed


@dataclass(frozen=True, slots=True)
class ReleaseTicket:
    """Send the session's ticket for the stage that it waits for."""

    session_id: str
    stage: Stage
    worker_id: str
    queue_partition: int


@dataclass(frozen=True, slots=True)
class RejectTask:
    """Send the task to the dead letters: its id is used by another task."""

    fact: TaskSubmitted
    reason: str


Command = ReleaseTicket | RejectTask | Grant | Revoke | CloseKey | Discard
"""Sent after the commit; sending one twice does no harm."""


class Decision(msgspec.Struct, frozen=True):
    """All that follows from one input. A struct, because one is made per fact and a frozen dataclass takes ten times as long to make."""

    tasks: tuple[TaskState, ...] = ()
    sessions: tuple[SessionState, ...] = ()
    deleted: tuple[str, ...] = ()
    """Table keys that get a tombstone."""
    records: tuple[Open | Build | CloseGroup, ...] = ()
    """For `polar.completions`, in this order, in the same transaction."""
    commands: tuple[Command, ...] = ()
    pauses: Pauses | None = None
    """The fleet's pauses, if they changed."""
    skipped: str | None = None
    """Reason code if the table doesn't allow the input (protocol 6)."""


NOTHING = Decision()
