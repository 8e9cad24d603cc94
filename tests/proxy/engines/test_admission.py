"""Turns at an engine: so many at once, the others in order, and none for ever."""

from __future__ import annotations

import asyncio

import pytest

from proxy.engines import admission
from proxy.engines.admission import Admission
from proxy.errors import EngineError, Refusal, refusal_of


async def test_as_many_as_are_allowed_are_under_way_and_the_others_follow_in_order() -> None:
    turns = Admission(2)
    begun: list[tuple[int, int]] = []
    go_on = asyncio.Event()

    async def call(number: int) -> None:
        async with turns.turn():
            begun.append((number, turns.under_way))
            await go_on.wait()

    async with asyncio.timeout(5), asyncio.TaskGroup() as calls:
        for number in range(5):
            calls.create_task(call(number))
        while turns.waiting < 3:
            await asyncio.sleep(0)
        assert begun == [(0, 1), (1, 2)]
        go_on.set()
    assert [number for number, _ in begun] == list(range(5))
    assert max(under_way for _, under_way in begun) == 2
    assert (turns.under_way, turns.waiting) == (0, 0)


async def test_a_wait_that_takes_too_long_ends_in_an_error_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAIT_S", 0.02)
    turns = Admission(1)
    async with turns.turn():
        with pytest.raises(EngineError, match=r"1 calls are under way and one waited 0\.02 s") as fault:
            async with turns.turn():
                pass
        refused = refusal_of(fault.value)
        assert (fault.value.code, refused.refusal, refused.retry_after_s) == ("busy", Refusal.OVERLOADED, 5)
    async with turns.turn():
        assert (turns.under_way, turns.waiting) == (1, 0)


async def test_where_too_many_wait_the_next_is_turned_away_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "QUEUED", 0)
    turns = Admission(1)
    async with turns.turn():
        with pytest.raises(EngineError, match="1 calls are under way and 0 wait"):
            async with turns.turn():
                pass


async def test_what_a_pause_has_held_waits_for_its_turn_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "QUEUED", 0)
    monkeypatch.setattr(admission, "WAIT_S", 0.0)
    turns = Admission(1)
    begun = []

    async def call() -> None:
        async with turns.turn(patiently=True):
            begun.append(turns.under_way)
            await asyncio.sleep(0)

    async with asyncio.timeout(5):
        await asyncio.gather(*(call() for _ in range(5)))
    assert begun == [1] * 5


async def test_a_call_that_is_given_up_while_it_waits_takes_no_turn_with_it() -> None:
    turns = Admission(1)

    async def call() -> None:
        async with turns.turn():
            await asyncio.sleep(0)

    async with asyncio.timeout(5):
        async with turns.turn():
            waiting = asyncio.create_task(call())
            await asyncio.sleep(0)
            assert turns.waiting == 1
            waiting.cancel()
            await asyncio.wait([waiting])
        await call()
    assert (turns.under_way, turns.waiting) == (0, 0)
