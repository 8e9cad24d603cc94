"""Gives up a request to a broker that hangs: one that owes an answer and is silent.

aiokafka 0.14 has one time-out for all requests of a client. It must be long enough for 32 MiB on a slow line and for a group's rebalance,
and a broker that hangs would cost it several times over. So would each new connection to a machine that is gone. Invariant: a request fails
early only if no byte moved on its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

SILENCE_S = 5.0
"""How long a broker may be silent; then its client asks another. A cluster replaces a broker that hangs after some 10 s. A client meets it
at most twice on the way to its successor: with its own request, and with one for metadata. A slower broker serves no fleet anyway: a
heartbeat waits for 2 s, a transaction for 5 s. Longer than a fetch may wait for records (`kafka.IDLE_FETCH_MS`)."""
SUSPECT_S = 1.0
"""How long a broker may be silent after it was silent for `SILENCE_S`, until it answers a request of this process. Each client of a process
has connections of its own, and a partition's owner that starts again makes several clients, one after the other."""
FETCH = 1
"""The API key of a fetch."""
PROMPT = frozenset({0, 1, 2, 3, 8, 9, 10, 12, 17, 18, 22, 24, 25, 26, 28, 36})
"""API keys of the requests that brokers answer at once: Produce, Fetch, ListOffsets, Metadata, OffsetCommit, OffsetFetch, FindCoordinator,
Heartbeat, SaslHandshake, ApiVersions, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit, SaslAuthenticate. A
Produce also waits for replicas; if it is sent again meanwhile, the broker knows its sequence number."""

Send = Callable[..., Awaitable[Any]]
"""`AIOKafkaConnection.send`: connection, request, whether a response is expected."""
Connect = Callable[[Any], Awaitable[Any]]
"""`AIOKafkaConnection.connect`."""

_suspects: set[tuple[str, int]] = set()
"""Host and port of the brokers that owe this process an answer for too long."""


def _patience_s(connection: Any) -> float:
    """A broker answers a connection's requests in order, and holds a fetch that finds nothing for as long as the fetch allows."""
    if _address(connection) not in _suspects:
        return SILENCE_S
    fetches = (request for _, request, _ in connection._requests if request is not None and request.API_KEY == FETCH)
    return SUSPECT_S + max((request.max_wait_time for request in fetches), default=0) / 1000


def _address(connection: Any) -> tuple[str, int]:
    return connection.host, connection.port


def connected(connect: Connect) -> Connect:
    """`connect`, which raises TimeoutError if nobody accepts the connection for `SILENCE_S`. What it then sends is watched by itself."""

    async def connect_watched(connection: Any) -> Any:
        made = asyncio.ensure_future(connect(connection))
        try:
            await asyncio.wait({made}, timeout=_patience_s(connection))
            if connection._writer is None and not made.done():
                _suspects.add(_address(connection))
                raise TimeoutError
            return await made
        except BaseException:
            # A cancellation may come when the connection is already made, and nobody else has it yet.
            if not made.cancel():
                connection.close()
            raise

    return connect_watched


def watched(send: Send) -> Send:
    """`send`, with answers that raise TimeoutError once their broker has been silent for `SILENCE_S`."""

    def send_watched(connection: Any, request: Any, expect_response: bool = True) -> Awaitable[Any]:
        answer = send(connection, request, expect_response)
        if expect_response and request.API_KEY in PROMPT:
            _, _, future = connection._requests[-1]
            _watch(connection, future)
        return answer

    return send_watched


def _watch(connection: Any, answer: asyncio.Future[Any]) -> None:
    """Look after `_patience_s` whether it has answered, or a byte has moved."""

    def look(before: tuple[float, int, int]) -> None:
        if answer.done():
            return
        if _traffic(connection) == before:
            _suspects.add(_address(connection))
            answer.set_exception(TimeoutError())
        else:
            _watch(connection, answer)

    def end(_: asyncio.Future[Any]) -> None:
        look_later.cancel()
        if answer.cancelled():
            _close_if_unowned(connection)
        elif answer.exception() is None:
            _suspects.discard(_address(connection))

    look_later = asyncio.get_running_loop().call_later(_patience_s(connection), look, _traffic(connection))
    answer.add_done_callback(end)


def _close_if_unowned(connection: Any) -> None:
    """Close a connection that no client keeps: aiokafka 0.14 drops the one of a cancelled bootstrap. A client's own report their close."""
    if connection._on_close_cb is None:
        connection.close()


def _traffic(connection: Any) -> tuple[float, int, int]:
    """When the last answer came, the bytes of the next one that are here, and those that wait to be sent."""
    return (
        connection._last_action,
        len(connection._reader._buffer),
        connection._writer.transport.get_write_buffer_size(),
    )
