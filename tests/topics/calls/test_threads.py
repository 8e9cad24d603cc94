"""Which calls are one thread, by their headers."""

from __future__ import annotations

import pytest

from topics.calls.threads import thread_of

MAIN = {"session": "s", "thread": "t"}


@pytest.mark.parametrize("name", ["retry", "window", "request", "source"])
def test_what_may_differ_between_the_calls_of_a_thread_names_no_thread(name: str) -> None:
    assert thread_of(MAIN | {name: "x"}) == thread_of(MAIN)
    assert thread_of({name: "x"}) is None


@pytest.mark.parametrize("name", ["session", "thread", "agent", "parent_thread", "subagent"])
def test_a_conversation_or_an_agent_of_its_own_is_another_thread(name: str) -> None:
    assert thread_of(MAIN | {name: "x"}) != thread_of(MAIN)
