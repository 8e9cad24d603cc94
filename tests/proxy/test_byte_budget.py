"""Which bodies wait for which."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from proxy import byte_budget
from proxy.byte_budget import KEY_BYTES, MIB, SMALL, ByteBudget
from proxy.errors import Refusal, RefusalError


async def test_a_large_body_waits_in_turn_while_small_ones_go_on() -> None:
    budget = ByteBudget(64 * MIB)
    with ExitStack() as stack:
        first, second, third, small = [stack.enter_context(budget.reservation(name)) for name in "abcd"]
        await first.grow(60 * MIB)
        waiting = [asyncio.ensure_future(each.grow(40 * MIB)) for each in (second, third)]
        await asyncio.sleep(0)
        await small.grow(SMALL)
        assert not any(task.done() for task in waiting)
        first.shrink(20 * MIB)
        await waiting[0]
        assert not waiting[1].done()
        second.shrink(0)
        await waiting[1]


async def test_who_waits_too_long_or_has_too_much_under_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_budget, "WAIT_S", 0.05)
    budget = ByteBudget(64 * MIB)
    with budget.reservation("a") as first, budget.reservation("b") as other, budget.reservation("a") as more:
        await first.grow(KEY_BYTES)
        for reservation in (other, more):
            with pytest.raises(RefusalError) as refused:
                await reservation.grow(SMALL + MIB)
            assert refused.value.refusal is Refusal.OVERLOADED
    with budget.reservation("a") as later:
        await later.grow(KEY_BYTES)


async def test_a_waiter_that_goes_away_leaves_nothing_behind() -> None:
    budget = ByteBudget(64 * MIB)
    with budget.reservation("a") as first:
        await first.grow(60 * MIB)
        gone = asyncio.ensure_future(budget.reservation("b").grow(60 * MIB))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
    with budget.reservation("b") as later:
        await asyncio.wait_for(later.grow(KEY_BYTES), 1)
