"""The life of a claim on a stage, from its request to its free slot, as a table: `step(state, event) → next state and action`. Pure.

    REQUESTED ──Grant──▶ WORKING ──done──▶ REPORTING ──acknowledged──▶ ENDED
    AHEAD ──done──▶ WAITING ──Grant──▶ REPORTING                         ▲
      any of these ──Revoke, shutdown, no Kafka, no answer──▶ its work is stopped ──▶ Stopped | HandedBack | no fact

Invariants: a result is reported only under a Grant; `Stopped` and `HandedBack` are sent only after the claim's work is dead; the first
event that ends a claim decides how it ends. `claim_runner.py` does the I/O, each stage's own module does the work, and the coordinator
decides which claim counts.
"""

from __future__ import annotations

from enum import StrEnum, auto


class State(StrEnum):
    """Where a claim stands. Its slot is taken in every state except ENDED."""

    REQUESTED = auto()
    """`Claimed` is sent; the work waits for the Grant."""
    AHEAD = auto()
    """`Claimed` is sent; the work touches nothing shared and already runs."""
    WAITING = auto()
    """The work is done; its result waits for the Grant."""
    WORKING = auto()
    """Granted; the work runs."""
    REPORTING = auto()
    """The result is being sent."""
    LAST_REPORT = auto()
    """The result is being sent, for a short time only: the process shuts down."""
    STOPPING = auto()
    """The work is being killed. No fact follows."""
    REVOKED = auto()
    """The work is being killed. `Stopped` follows."""
    RETURNING = auto()
    """The work is being killed. `HandedBack` follows, so that the session loses no attempt."""
    CLOSING = auto()
    """`Stopped` or `HandedBack` is being sent."""
    CUT_OFF = auto()
    """The process leaves before the claim could close: whatever runs is cancelled."""
    ENDED = auto()


class Event(StrEnum):
    """An event in a claim's life. Values that end a claim are labels of the metric `polar_claims_ended` and part of fact ids."""

    GRANTED = auto()
    REVOKED = auto()
    LEAVING = auto()
    """The process shuts down."""
    NO_KAFKA = auto()
    """Kafka was away for 15 min."""
    UNANSWERED = auto()
    """Nobody answered the request for 10 min, though Kafka was there."""
    DONE = auto()
    """The last action has finished: the work, the report, or the kill."""
    LATE = auto()
    """The result wasn't acknowledged in the time that a process that shuts down has for it."""
    CUT_OFF = auto()
    """The process has no time left."""


class Action(StrEnum):
    """The action that the runner starts on a transition. At most one action of a claim runs; STOP and CUT_OFF cancel the one before."""

    WORK = auto()
    REPORT = auto()
    """Send the result until it is acknowledged, then tidy up."""
    SET_LIMIT = auto()
    """Raise LATE when the time for the last report is over; the report goes on."""
    STOP = auto()
    """Kill the work, then tidy up."""
    SEND_STOPPED = auto()
    SEND_HANDED_BACK = auto()
    CUT_OFF = auto()
    """Kill the work, then tidy up, unless a tidying that had begun was cancelled."""
    RELEASE = auto()
    """Free the slot."""


UNGRANTED = frozenset({State.REQUESTED, State.AHEAD, State.WAITING})
"""States in which the request is repeated."""
Step = tuple[State, Action | None]

_STOP = (State.STOPPING, Action.STOP)
_RETURN = (State.RETURNING, Action.STOP)
# A claim without a Grant is handed back too: a Grant that is on its way would cost the session an attempt.
_BEFORE_GRANT: dict[Event, Step] = {
    Event.REVOKED: _STOP,
    Event.LEAVING: _RETURN,
    Event.NO_KAFKA: _STOP,
    Event.UNANSWERED: _RETURN,
}
_RELEASE = (State.ENDED, Action.RELEASE)
TRANSITIONS: dict[tuple[State, Event], Step] = {
    **{(state, event): step for state in UNGRANTED for event, step in _BEFORE_GRANT.items()},
    (State.REQUESTED, Event.GRANTED): (State.WORKING, Action.WORK),
    (State.AHEAD, Event.GRANTED): (State.WORKING, None),
    (State.AHEAD, Event.DONE): (State.WAITING, None),
    (State.WAITING, Event.GRANTED): (State.REPORTING, Action.REPORT),
    (State.WORKING, Event.DONE): (State.REPORTING, Action.REPORT),
    (State.WORKING, Event.REVOKED): (State.REVOKED, Action.STOP),
    (State.WORKING, Event.LEAVING): _RETURN,
    (State.WORKING, Event.NO_KAFKA): _STOP,
    (State.REPORTING, Event.DONE): _RELEASE,
    (State.REPORTING, Event.REVOKED): (State.REVOKED, Action.STOP),
    (State.REPORTING, Event.LEAVING): (State.LAST_REPORT, Action.SET_LIMIT),
    (State.REPORTING, Event.NO_KAFKA): _STOP,
    (State.LAST_REPORT, Event.DONE): _RELEASE,
    (State.LAST_REPORT, Event.LATE): _RETURN,
    (State.STOPPING, Event.DONE): _RELEASE,
    (State.REVOKED, Event.DONE): (State.CLOSING, Action.SEND_STOPPED),
    (State.RETURNING, Event.DONE): (State.CLOSING, Action.SEND_HANDED_BACK),
    (State.CLOSING, Event.DONE): _RELEASE,
    **{(state, Event.CUT_OFF): (State.CUT_OFF, Action.CUT_OFF) for state in State if state is not State.ENDED},
    (State.CUT_OFF, Event.DONE): _RELEASE,
}
"""Every other event leaves the state as it is: answers come twice, and a claim that is ending ends in the way it began to."""


def step(state: State, event: Event) -> Step:
    """The next state, and the action to start (None: none)."""
    return TRANSITIONS.get((state, event), (state, None))
