"""`first_done` returns or raises what ended first, and leaves no task of its own behind."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.waiting.first_done import first_done


class BrokenError(Exception):
    """What a contender raises here."""


async def turns(count: int, result: object = None, *, fails: bool = False) -> object:
    """Ends after `count` turns of the loop; the race itself takes fewer than five to notice an end."""
    for _ in range(count):
        await asyncio.sleep(0)
    if fails:
        raise BrokenError(result)
    return result


def others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


@given(ends=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=5))
def test_the_first_to_end_decides_and_no_task_is_left(ends: list[tuple[int, bool]]) -> None:
    first = min(count for count, _ in ends)
    failed = [number for number, (count, fails) in enumerate(ends) if count == first and fails]

    async def race() -> None:
        contenders = [turns(5 * count, number, fails=fails) for number, (count, fails) in enumerate(ends)]
        if failed:
            with pytest.raises(BrokenError, match=str(failed[0])):
                await first_done(*contenders)
        else:
            done = await first_done(*contenders)
            assert set(done.values()) == {number for number, (count, _) in enumerate(ends) if count == first}
            assert all(contenders[number] in done for number in done.values())
        assert not others()

    asyncio.run(race())


async def test_an_event_counts_once_it_is_set() -> None:
    stop, never = asyncio.Event(), asyncio.Event()
    stop.set()
    assert await first_done(stop, never, turns(50)) == {stop: True}
    assert not others()


async def test_a_future_of_the_caller_is_never_cancelled() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    await first_done(future, turns(1))
    assert not future.done()
    future.set_result("late")
    assert await first_done(future, turns(50)) == {future: "late"}


async def test_nothing_is_done_by_the_timeout() -> None:
    assert await first_done(asyncio.Event(), timeout_s=0.01) == {}
    assert not others()


async def test_a_coroutine_that_loses_is_awaited_to_its_end_and_its_late_error_dropped() -> None:
    steps: list[str] = []

    async def slow_to_leave() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await turns(3)
            steps.append("left")
            raise BrokenError

    await first_done(slow_to_leave(), turns(1))
    assert steps == ["left"]


async def test_a_cancelled_caller_takes_its_contenders_along() -> None:
    racing = asyncio.create_task(first_done(asyncio.Event(), turns(10_000)))
    await turns(2)
    racing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await racing
    assert not others()
