"""What comes slowly keeps nobody waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from polar.cli.background_reader import AHEAD, read_in_background


async def test_items_come_in_order_and_the_end_as_it_was() -> None:
    def items() -> Iterator[int]:
        yield from range(3 * AHEAD)
        raise ValueError("bad line")

    reading = read_in_background(items())
    assert [await anext(reading) for _ in range(3 * AHEAD)] == list(range(3 * AHEAD))
    with pytest.raises(ValueError, match="bad line"):
        await anext(reading)


async def test_only_so_much_is_read_ahead() -> None:
    taken = 0
    many = threading.Event()

    def items() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            if taken > AHEAD:
                many.set()
            yield taken

    reading = read_in_background(items())
    assert await anext(reading) == 1
    assert await asyncio.to_thread(many.wait, 10)
    assert taken <= AHEAD + 2
    await reading.aclose()


def test_a_pipe_that_says_nothing_holds_up_no_end() -> None:
    silent = threading.Event()

    def items() -> Iterator[int]:
        silent.wait(60)
        yield 1

    async def read() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(read_in_background(items()))

    asyncio.run(read())
    silent.set()
