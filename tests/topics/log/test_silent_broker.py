"""A stand-in for a broker, a plain TCP server, that answers the first request of a connection late, slowly or never."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiokafka.conn import create_conn

from topics.log import kafka, silent_broker

SILENCE_S = 0.8
SUSPECT_S = 0.2
ANSWER = struct.pack(">iihi", 10, 1, 0, 0)
"""ApiVersions, version 0: length, correlation id, no error, no entries."""

Answer = Callable[[asyncio.StreamWriter], Coroutine[None, None, None]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent_broker, "SILENCE_S", SILENCE_S)
    monkeypatch.setattr(silent_broker, "SUSPECT_S", SUSPECT_S)


@asynccontextmanager
async def broker(answer: Answer) -> AsyncIterator[int]:
    """The port of a server that waits for a request, and then answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(4)
            await answer(writer)
            await reader.read(-1)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def connect(port: int) -> None:
    """Raises TimeoutError if the connection's first request, for the API's versions, isn't answered."""
    made = await create_conn("127.0.0.1", port, request_timeout_ms=kafka.REQUEST_TIMEOUT_MS)
    made.close()


async def never(_: asyncio.StreamWriter) -> None:
    pass


@contextmanager
def fails_after(least_s: float, most_s: float) -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        yield
    assert least_s <= time.monotonic() - began < most_s


async def test_a_request_to_a_silent_broker_fails_long_before_its_time_out() -> None:
    async with broker(never) as port:
        with fails_after(SILENCE_S, kafka.REQUEST_TIMEOUT_MS / 1000 / 2):
            await connect(port)


async def test_a_broker_that_was_silent_is_asked_again_with_less_patience_until_it_answers() -> None:
    silent = True

    async def answer(writer: asyncio.StreamWriter) -> None:
        if not silent:
            writer.write(ANSWER)

    async with broker(answer) as port:
        with fails_after(SILENCE_S, 2 * SILENCE_S):
            await connect(port)
        with fails_after(SUSPECT_S, SILENCE_S):
            await connect(port)
        silent = False
        await connect(port)
        silent = True
        with fails_after(SILENCE_S, 2 * SILENCE_S):
            await connect(port)


async def test_a_machine_that_is_gone_is_given_up_like_a_silent_broker() -> None:
    """A listener whose queue is full drops what arrives, as a machine without power does."""
    with socket.socket() as full, socket.socket() as queued:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        queued.connect(full.getsockname())
        port = full.getsockname()[1]
        with fails_after(SILENCE_S, 2 * SILENCE_S):
            await connect(port)
        with fails_after(SUSPECT_S, SILENCE_S):
            await connect(port)


async def test_an_answer_on_a_slow_line_is_waited_for() -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER[:4])
        for byte in ANSWER[4:]:
            writer.write(bytes([byte]))
            await asyncio.sleep(SILENCE_S / 4)

    async with broker(slowly) as port:
        await connect(port)
