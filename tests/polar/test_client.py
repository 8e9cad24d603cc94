"""What programs that submit rely on."""

from __future__ import annotations

import asyncio
import socket

import pytest

from polar import client
from polar.settings import Settings
from polar.types.errors import NotReady


@pytest.fixture
def no_kafka() -> Settings:
    """Settings of a broker that isn't there: the port was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return Settings(kafka=f"127.0.0.1:{free.getsockname()[1]}")


async def test_who_waits_is_told_when_kafka_is_gone_for_good(no_kafka: Settings) -> None:
    was_cancelled = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    with pytest.raises(NotReady, match="has been away for"):
        await client.unless_gone(no_kafka, wait(), gone_s=0.2)
    assert was_cancelled.is_set()


async def test_what_ends_in_time_ends_as_it_would_alone(no_kafka: Settings) -> None:
    async def fail() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await client.unless_gone(no_kafka, fail(), gone_s=5)
