"""Budgets that stand still."""

from __future__ import annotations

import asyncio
import time

import pytest

from consumers.stages.budget import TICK_S, Budget, BudgetExceededError


async def forever() -> None:
    await asyncio.Event().wait()


async def test_work_within_its_budget_gives_its_result_or_its_error() -> None:
    async def fail() -> None:
        raise KeyError("x")

    assert await Budget(5, lambda: True).within(asyncio.sleep(0, 7)) == 7
    with pytest.raises(KeyError):
        await Budget(5, lambda: True).within(fail())


async def test_work_beyond_its_budget_is_cancelled_and_awaited() -> None:
    ended = []

    async def work() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    budget = Budget(0.05, lambda: True)
    with pytest.raises(BudgetExceededError):
        await budget.within(work())
    assert ended
    assert budget.is_spent


async def test_time_that_does_not_count_is_not_charged() -> None:
    counts = False
    budget = Budget(0.6, lambda: counts)
    async with budget.alarm() as rings:
        await asyncio.sleep(0.9)
        assert not rings.is_set()
        counts = True
        began = time.monotonic()
        async with asyncio.timeout(2):
            await rings.wait()
        assert time.monotonic() - began > 0.6 - 2 * TICK_S


async def test_a_cancelled_caller_takes_its_work_along() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.set()

    caller = asyncio.create_task(Budget(5, lambda: True).within(work()))
    await asyncio.sleep(0.01)
    caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    assert ended.is_set()
