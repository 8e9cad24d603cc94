"""A stand-in for a broker, a plain TCP server, that answers the first request of a connection late, slowly or never."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.protocol.fetch import FetchRequest

from topics.log import kafka, silent_broker

SHORT_S = 0.4
LONG_S = 60.0
ANSWER = struct.pack(">iihi", 10, 1, 0, 0)
"""ApiVersions, version 0: length, correlation id, no error, no entries."""
WITH_METADATA = struct.pack(">iihihhh", 16, 1, 0, 1, 3, 0, 1)
"""ApiVersions, version 0, with one entry: Metadata in the versions 0 and 1."""

Patience = Callable[[float, float], None]
Answer = Callable[[asyncio.StreamWriter], Coroutine[None, None, None]]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Patience:
    """Sets `SILENCE_S` and `SUSPECT_S`."""

    def set_(silence_s: float, suspect_s: float) -> None:
        monkeypatch.setattr(silent_broker, "SILENCE_S", silence_s)
        monkeypatch.setattr(silent_broker, "SUSPECT_S", suspect_s)

    return set_


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


async def at_once(writer: asyncio.StreamWriter) -> None:
    writer.write(ANSWER)


@contextmanager
def fails_soon() -> Iterator[None]:
    """After `SHORT_S`, and long before `LONG_S` and the client's own time-out."""
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        yield
    assert SHORT_S <= time.monotonic() - began < kafka.REQUEST_TIMEOUT_MS / 1000 * 2 / 3


async def fails_soon_and_again(port: int, patience: Patience) -> None:
    """First within the time for any broker, then within that for one that was silent."""
    for times in ((SHORT_S, LONG_S), (LONG_S, SHORT_S)):
        patience(*times)
        with fails_soon():
            await connect(port)


async def test_a_request_to_a_silent_broker_fails_long_before_its_time_out(patience: Patience) -> None:
    patience(SHORT_S, LONG_S)
    async with broker(never) as port:
        with fails_soon():
            await connect(port)


async def test_a_broker_that_was_silent_is_asked_again_with_less_patience_until_it_answers(patience: Patience) -> None:
    silent = True

    async def answer(writer: asyncio.StreamWriter) -> None:
        if not silent:
            writer.write(ANSWER)

    async with broker(answer) as port:
        await fails_soon_and_again(port, patience)
        silent = False
        patience(LONG_S, LONG_S)
        await connect(port)
        silent = True
        patience(SHORT_S, LONG_S)
        with fails_soon():
            await connect(port)


async def test_a_machine_that_is_gone_is_given_up_like_a_silent_broker(patience: Patience) -> None:
    """A listener whose queue is full drops what arrives, as a machine without power does."""
    with socket.socket() as full, socket.socket() as queued:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        queued.connect(full.getsockname())
        port = full.getsockname()[1]
        await fails_soon_and_again(port, patience)


async def test_a_broker_may_hold_a_fetch_as_long_as_it_was_allowed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = AIOKafkaConnection("127.0.0.1", 9)
    fetch = FetchRequest(2_500, 1, 1, 0, [], rack_id="").prepare({FetchRequest.API_KEY: (0, 11)})
    connection._requests += [(None, None, None), (1, fetch, None)]  # the first is a login's
    assert silent_broker._patience_s(connection) == silent_broker.SILENCE_S
    monkeypatch.setattr(silent_broker, "_suspects", {("127.0.0.1", 9)})
    assert silent_broker._patience_s(connection) == silent_broker.SUSPECT_S + 2.5
    assert kafka.IDLE_FETCH_MS / 1000 + silent_broker.SUSPECT_S < silent_broker.SILENCE_S


async def test_an_answer_on_a_slow_line_is_waited_for(patience: Patience) -> None:
    patience(SHORT_S, SHORT_S)

    async def slowly(writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER[:4])
        for byte in ANSWER[4:]:
            writer.write(bytes([byte]))
            await asyncio.sleep(SHORT_S / 4)

    async with broker(slowly) as port:
        await connect(port)


async def test_a_connection_that_is_made_when_its_caller_is_cancelled_is_closed() -> None:
    async with broker(at_once) as port:
        connection = AIOKafkaConnection("127.0.0.1", port)

        async def made(connection: AIOKafkaConnection) -> None:
            await connection.connect()
            caller.cancel()

        caller: asyncio.Future[None] = asyncio.ensure_future(silent_broker.connected(made)(connection))
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert not connection.connected()


async def test_the_connection_of_a_cancelled_bootstrap_is_closed() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        writer.write(WITH_METADATA)
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        asked.set()
        assert await reader.read() == b""
        writer.close()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        client = AIOKafkaClient(bootstrap_servers=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        start = asyncio.create_task(client.bootstrap())
        await asked.wait()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await closed.wait()
