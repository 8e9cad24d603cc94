"""Each state of shared calls × each event: the next state, then the effects. A state or event without a line fails the test."""

from __future__ import annotations

import pytest

from proxy.session.delivery import HAVE_ANSWER, Effect, Event, State, advance

EXPECTED = """
            JOINED     ANSWERED  FAILED  DELIVERED          LAST_DELIVERED         LEFT       LAST_LEFT
RUNNING     RUNNING    ANSWERED  FAILED  -                  -                      RUNNING    ABANDONED:end,disown,release
ANSWERED    ANSWERED   -         -       DELIVERED:keep     KEPT:keep,release      ANSWERED   ABANDONED:end,disown,release
FAILED      -          -         -       -                  -                      FAILED     ABANDONED:end,disown,release
DELIVERED   DELIVERED  -         -       DELIVERED          KEPT:release           DELIVERED  KEPT:release
KEPT        DELIVERED  -         -       -                  -                      -          -
ABANDONED   -          -         -       -                  -                      -          -
"""
"""`-`: can't happen."""


def outcome(state: State, event: Event) -> str:
    try:
        after, effects = advance(state, event)
    except ValueError:
        return "-"
    return after.name + ":" * bool(effects) + ",".join(effect.name.lower().partition("_")[0] for effect in effects)


@pytest.mark.parametrize("state", State)
def test_what_follows_each_event(state: State) -> None:
    names, *rows = (line.split() for line in EXPECTED.strip().splitlines())
    expected = {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}
    assert {event.name: outcome(state, event) for event in Event} == expected[state.name]
    assert len(expected) == len(State)


def test_every_answer_that_leaves_is_kept_and_every_other_end_disowns() -> None:
    for state in State:
        for event in Event:
            if outcome(state, event) == "-":
                continue
            after, effects = advance(state, event)
            assert (Effect.DISOWN_ANSWERS in effects) == (after is State.ABANDONED)
            assert (Effect.KEEP_ANSWERS in effects) == (
                after in {State.DELIVERED, State.KEPT} and state is State.ANSWERED
            )
            assert (Effect.RELEASE in effects) == (after in {State.KEPT, State.ABANDONED})
            assert state not in HAVE_ANSWER or after in HAVE_ANSWER or after is State.ABANDONED
