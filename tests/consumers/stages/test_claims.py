"""The life of a claim: each state × each event, what follows, read off the table; and what holds on every path through it."""

from __future__ import annotations

import pytest

from consumers.stages.claims import TRANSITIONS, UNGRANTED, Action, Event, State, step

EXPECTED = """
granted
    working: work                     <- requested
    working                           <- ahead
    reporting: report                 <- waiting
revoked
    stopping: stop                    <- requested ahead waiting
    revoked: stop                     <- working reporting
leaving
    returning: stop                   <- requested ahead waiting working
    last_report: set_limit            <- reporting
no_kafka
    stopping: stop                    <- requested ahead waiting working reporting
unanswered
    returning: stop                   <- requested ahead waiting
done
    waiting                           <- ahead
    reporting: report                 <- working
    ended: release                    <- reporting last_report stopping closing cut_off
    closing: send_stopped             <- revoked
    closing: send_handed_back         <- returning
late
    returning: stop                   <- last_report
cut_off
    cut_off: cut_off                  <- requested ahead waiting working reporting last_report stopping revoked returning closing cut_off
"""
"""Event, then next state and action <- states. A state that an event doesn't name stays as it is."""


def expected() -> dict[tuple[State, Event], str]:
    found: dict[tuple[State, Event], str] = {}
    for line in EXPECTED.strip().splitlines():
        if not line.startswith(" "):
            event = Event(line)
            continue
        outcome, _, states = line.partition(" <- ")
        for state in states.split():
            assert (State(state), event) not in found
            found[State(state), event] = outcome.strip()
    return found


@pytest.mark.parametrize("event", Event)
def test_what_follows_an_event_in_each_state(event: Event) -> None:
    for state in State:
        after, action = step(state, event)
        outcome = after.value + (f": {action.value}" if action else "")
        assert outcome == expected().get((state, event), state.value), state


def test_the_text_above_names_every_event_and_every_transition() -> None:
    assert expected().keys() == TRANSITIONS.keys()
    assert {event for _, event in TRANSITIONS} == set(Event)


@pytest.mark.parametrize("start", [State.REQUESTED, State.AHEAD])
def test_every_path_ends_and_does_each_thing_once_and_in_order(start: State) -> None:
    """Paths, as the actions that were started; `REQUESTED` starts its work with the Grant, `AHEAD` has started it."""
    begun: tuple[Action, ...] = (Action.WORK,) if start is State.AHEAD else ()
    reached = {(start, begun, False)}
    unseen = list(reached)
    while unseen:
        state, actions, granted = unseen.pop()
        for event in Event:
            after, action = step(state, event)
            found = (after, actions + ((action,) if action else ()), granted or event is Event.GRANTED)
            if after is not state and found not in reached:
                reached.add(found)
                unseen.append(found)
    assert {state for state, _, _ in reached} | {State.REQUESTED, State.AHEAD, State.WAITING} == set(State)
    for state, actions, granted in reached:
        assert len(set(actions)) == len(actions), "no action twice"
        if Action.REPORT in actions or Action.SEND_STOPPED in actions:
            assert granted
        if Action.SEND_STOPPED in actions or Action.SEND_HANDED_BACK in actions:
            assert Action.STOP in actions, "nothing of the claim lives when its last fact is sent"
        if state in UNGRANTED:
            assert not granted
        if state is State.ENDED:
            assert actions[-1] is Action.RELEASE
            assert len({Action.SEND_STOPPED, Action.SEND_HANDED_BACK} & set(actions)) <= 1
        else:
            assert step(*(step(state, Event.CUT_OFF)[0], Event.DONE))[0] is State.ENDED
