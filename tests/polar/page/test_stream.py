"""The stream of changes: a slow reader gets the newest state, nobody gets more than five messages a second, and a full house is told so."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from polar.page import stream
from polar.page.following import Following, Looking
from polar.page.stream import Streams, frames
from proxy.control.api import ControlError
from topics.environment.settings import Settings
from topics.types.session import Phase, SessionState

NOW = 1_900_000_000_000


@pytest.fixture
async def looking(settings: Settings) -> AsyncIterator[Looking]:
    """What a page knows of a Kafka without sessions; the tests add rows."""
    following = Following(settings)
    async with following.looking() as found:
        yield found
    await following.close()


def change(looking: Looking, reward: float, index: int = 0) -> None:
    looking.sessions.row(SessionState(f"t.{index}", "t", index, Phase.ENDED, 0, reward=reward), NOW)


async def next_rows(messages: AsyncGenerator[bytes]) -> Any:
    """The rows of the next message that has some."""
    async for frame in messages:
        event, data, *_ = frame.decode().split("\n")
        if event == "event: sessions":
            return json.loads(data.removeprefix("data: "))["sessions"]
    raise AssertionError("the stream has ended")


async def test_a_reader_that_was_slow_gets_the_newest_state_once(looking: Looking) -> None:
    async with aclosing(frames(looking, 0)) as messages:
        change(looking, 0.0)
        assert [row["reward"] for row in await next_rows(messages)] == [0.0]
        for n in range(1, 50):
            change(looking, n / 50)
        assert [row["reward"] for row in await next_rows(messages)] == [0.98]


async def test_many_changes_come_in_few_messages_and_none_is_lost(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ROWS", 30)
    known: set[str] = set()
    count, began = 0, time.monotonic()
    async with aclosing(frames(looking, 0)) as messages:
        for index in range(100):
            change(looking, 1.0, index)
        async for frame in messages:
            count += 1
            if frame.startswith(b"event: sessions"):
                known |= {row["session_id"] for row in json.loads(frame.decode().split("data: ")[1])["sessions"]}
            if len(known) == 100:
                break
    assert count <= 5 * (time.monotonic() - began) + 2


async def test_more_readers_than_there_is_room_for_are_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "STREAMS", 0)
    following = Following(settings)
    with pytest.raises(ControlError, match="close one"):
        await Streams(following).stream(None, None)  # type: ignore[arg-type] # it is refused before the request is read
    assert not following.is_open
