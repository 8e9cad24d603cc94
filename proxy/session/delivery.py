"""The states of the calls that one or more requests wait for: a pure table (state, event) → (state, effects); `reply.py` carries it out.

RUNNING ──▶ ANSWERED ──a request got the answer──▶ DELIVERED ◀─join, last leaves─▶ KEPT
   ├──▶ FAILED ──┐  │
   └─last leaves─┴──┴─▶ ABANDONED
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """The state of the calls and of the requests that wait for them."""

    RUNNING = auto()
    ANSWERED = auto()
    """Every call has an answer; no request has received it."""
    FAILED = auto()
    """The calls have ended, and at least one has no answer."""
    DELIVERED = auto()
    """A request has received the whole answer; others wait."""
    KEPT = auto()
    """The answer was delivered and no request waits: it is kept for a client that asks again."""
    ABANDONED = auto()
    """All requests left without the answer."""


class Event(Enum):
    """An event. A request leaves with the whole answer (DELIVERED) or without it (LEFT)."""

    JOINED = auto()
    ANSWERED = auto()
    FAILED = auto()
    DELIVERED = auto()
    LAST_DELIVERED = auto()
    LEFT = auto()
    LAST_LEFT = auto()


class Effect(Enum):
    """An action that the caller of a transition carries out, in this order."""

    KEEP_ANSWERS = auto()
    END_CALLS = auto()
    DISOWN_ANSWERS = auto()
    RELEASE = auto()


Step = tuple[State, tuple[Effect, ...]]
_ABANDON: Step = State.ABANDONED, (Effect.END_CALLS, Effect.DISOWN_ANSWERS, Effect.RELEASE)
TRANSITIONS: dict[tuple[State, Event], Step] = {
    (State.RUNNING, Event.JOINED): (State.RUNNING, ()),
    (State.RUNNING, Event.ANSWERED): (State.ANSWERED, ()),
    (State.RUNNING, Event.FAILED): (State.FAILED, ()),
    (State.RUNNING, Event.LEFT): (State.RUNNING, ()),
    (State.RUNNING, Event.LAST_LEFT): _ABANDON,
    (State.ANSWERED, Event.JOINED): (State.ANSWERED, ()),
    (State.ANSWERED, Event.DELIVERED): (State.DELIVERED, (Effect.KEEP_ANSWERS,)),
    (State.ANSWERED, Event.LAST_DELIVERED): (State.KEPT, (Effect.KEEP_ANSWERS, Effect.RELEASE)),
    (State.ANSWERED, Event.LEFT): (State.ANSWERED, ()),
    (State.ANSWERED, Event.LAST_LEFT): _ABANDON,
    (State.FAILED, Event.LEFT): (State.FAILED, ()),
    (State.FAILED, Event.LAST_LEFT): _ABANDON,
    (State.DELIVERED, Event.JOINED): (State.DELIVERED, ()),
    (State.DELIVERED, Event.DELIVERED): (State.DELIVERED, ()),
    (State.DELIVERED, Event.LEFT): (State.DELIVERED, ()),
    (State.DELIVERED, Event.LAST_DELIVERED): (State.KEPT, (Effect.RELEASE,)),
    (State.DELIVERED, Event.LAST_LEFT): (State.KEPT, (Effect.RELEASE,)),
    (State.KEPT, Event.JOINED): (State.DELIVERED, ()),
}
HAVE_ANSWER = frozenset({State.ANSWERED, State.DELIVERED, State.KEPT})
"""States in which there is an answer to give."""


def advance(state: State, event: Event) -> Step:
    """The next state, and what to do on the way. Raises ValueError for an event that can't happen in this state."""
    step = TRANSITIONS.get((state, event))
    if step is None:
        raise ValueError(f"{event.name} can't happen to calls that are {state.name}")
    return step
