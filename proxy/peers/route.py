"""The way of one request to its session's owner, as states: a pure table (route, event, now) → route; `routing.py` does the I/O.

LOOKING ─▶ SERVING ──────────────▶ FINISHED          owned by this proxy; LOOKING again if the owner changes
   ├─────▶ FORWARDING ───────────▶ FINISHED          owned by another proxy
   │           └─▶ HELD ─▶ LOOKING, or GIVEN_UP      no owner, or an owner that doesn't answer
   └─────▶ MISDIRECTED                               forwarded to this proxy, which isn't the owner
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

HOLD_S = 10.0
"""How long a request waits for an owner: a dead owner's lease ends after 6 s, which is noticed with the next heartbeat."""
CUTS = 3
"""Connections that may break under one request before it is given up: the request may be what breaks them."""


class State(Enum):
    """Where a request is."""

    LOOKING = auto()
    SERVING = auto()
    FORWARDING = auto()
    HELD = auto()
    FINISHED = auto()
    MISDIRECTED = auto()
    GIVEN_UP = auto()


class Event(Enum):
    """An observation, or an event, on the way."""

    OWNED_HERE = auto()
    OWNED_BY_PEER = auto()
    UNOWNED = auto()
    NOT_OURS = auto()
    """Another proxy forwarded the request, and this proxy isn't the owner."""
    ENDED = auto()
    """With an answer or an error for the harness."""
    OWNER_CHANGED = auto()
    PEER_FAILED = auto()
    """The peer refused, can't be reached, or its lease ended."""
    CONNECTION_CUT = auto()
    WOKEN = auto()
    """The live proxies changed, or it is time for another try."""


ENDS = frozenset({State.FINISHED, State.MISDIRECTED, State.GIVEN_UP})


@dataclass(frozen=True)
class Route:
    """A request's state."""

    state: State = State.LOOKING
    held_until: float | None = None
    """When the request is given up, by the event loop's clock; None before it is held for the first time, and after a cut."""
    cuts: int = 0
    """Connections that broke under it."""


def advance(route: Route, event: Event, now: float) -> Route:
    """The route after an event. Raises ValueError for an event that can't happen in this state."""
    transition = TRANSITIONS.get((route.state, event))
    if transition is None:
        raise ValueError(f"{event.name} can't happen to a request that is {route.state.name}")
    return transition(route, now)


def _to(state: State) -> Callable[[Route, float], Route]:
    return lambda route, _: replace(route, state=state)


def _hold(route: Route, now: float) -> Route:
    until = now + HOLD_S if route.held_until is None else route.held_until
    is_over = now > until or route.cuts > CUTS
    return replace(route, state=State.GIVEN_UP if is_over else State.HELD, held_until=until)


def _hold_after_cut(route: Route, now: float) -> Route:
    """A peer that took the request was alive: the wait for an owner starts anew."""
    return _hold(replace(route, cuts=route.cuts + 1, held_until=None), now)


TRANSITIONS: dict[tuple[State, Event], Callable[[Route, float], Route]] = {
    (State.LOOKING, Event.OWNED_HERE): _to(State.SERVING),
    (State.LOOKING, Event.OWNED_BY_PEER): _to(State.FORWARDING),
    (State.LOOKING, Event.UNOWNED): _hold,
    (State.LOOKING, Event.NOT_OURS): _to(State.MISDIRECTED),
    (State.SERVING, Event.ENDED): _to(State.FINISHED),
    (State.SERVING, Event.OWNER_CHANGED): _to(State.LOOKING),
    (State.FORWARDING, Event.ENDED): _to(State.FINISHED),
    (State.FORWARDING, Event.PEER_FAILED): _hold,
    (State.FORWARDING, Event.CONNECTION_CUT): _hold_after_cut,
    (State.HELD, Event.WOKEN): _to(State.LOOKING),
}
