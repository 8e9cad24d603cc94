"""Each state of a routed request × each event: the next state. A state or event without a line fails the test.

`+ n` is how long the request is held from then on, in seconds. The clock stands at 100 s.
"""

from __future__ import annotations

import pytest

from proxy.peers.route import CUTS, ENDS, HOLD_S, Event, Route, State, advance

NOW = 100.0
ROUTES = {
    "new": Route(),
    "looking": Route(State.LOOKING, NOW + 1),
    "looking, too long": Route(State.LOOKING, NOW - 1),
    "serving": Route(State.SERVING),
    "forwarding": Route(State.FORWARDING),
    "forwarding again": Route(State.FORWARDING, NOW + 1, 1),
    "forwarding, too long": Route(State.FORWARDING, NOW - 1),
    "forwarding, last cut": Route(State.FORWARDING, None, CUTS),
    "held": Route(State.HELD, NOW + 1),
    "finished": Route(State.FINISHED),
    "misdirected": Route(State.MISDIRECTED),
    "given up": Route(State.GIVEN_UP),
}
EXPECTED = {
    "new": "SERVING FORWARDING HELD+10 MISDIRECTED - - - - -",
    "looking": "SERVING FORWARDING HELD+1 MISDIRECTED - - - - -",
    "looking, too long": "SERVING FORWARDING GIVEN_UP MISDIRECTED - - - - -",
    "serving": "- - - - FINISHED LOOKING - - -",
    "forwarding": "- - - - FINISHED - HELD+10 HELD+10 -",
    "forwarding again": "- - - - FINISHED - HELD+1 HELD+10 -",
    "forwarding, too long": "- - - - FINISHED - GIVEN_UP HELD+10 -",
    "forwarding, last cut": "- - - - FINISHED - HELD+10 GIVEN_UP -",
    "held": "- - - - - - - - LOOKING",
    "finished": "- - - - - - - - -",
    "misdirected": "- - - - - - - - -",
    "given up": "- - - - - - - - -",
}
"""By route, for each event in the order of `Event`: here, by peer, unowned, not ours, ended, owner changed, peer failed, cut, woken."""


def outcome(route: Route, event: Event) -> str:
    try:
        after = advance(route, event, NOW)
    except ValueError:
        return "-"
    assert after.cuts == route.cuts + (event is Event.CONNECTION_CUT)
    return after.state.name + (f"+{after.held_until - NOW:g}" if after.state is State.HELD and after.held_until else "")


@pytest.mark.parametrize("name", ROUTES)
def test_what_follows_each_event(name: str) -> None:
    assert [outcome(ROUTES[name], event) for event in Event] == EXPECTED[name].split()
    assert ROUTES.keys() == EXPECTED.keys()


def test_every_state_has_a_route_and_the_ends_have_no_way_on() -> None:
    assert {route.state for route in ROUTES.values()} == set(State)
    assert {ROUTES[name].state for name, line in EXPECTED.items() if set(line.split()) == {"-"}} == ENDS
    assert HOLD_S == 10
