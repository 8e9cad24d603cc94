"""How many bytes of request bodies a process works on at a time, in all and of one key, so that clients can't use up its memory.

A request reserves its bytes before its body is read, and keeps them until it is answered. Bodies up to `SMALL` have a lane of their own:
ordinary calls don't wait for large ones. In each lane the first to come is the first served.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from types import TracebackType
from typing import Self

from proxy.errors import Refusal, RefusalError

MIB = 2**20
SMALL = 4 * MIB
"""Bytes of a body that waits for no larger one: a conversation of 250,000 tokens has 1 MiB, and a screenshot as much again."""
SMALL_BYTES = 256 * MIB
"""Limit for all small bodies together."""
KEY_BYTES = 64 * MIB
"""Limit for the bodies of one key, waiting ones included. One body of the largest size fits."""
WAITING = 256
"""Requests that wait in a lane; each holds what its connection has buffered, some 200 kB."""
WAIT_S = 30.0
RETRY_AFTER_S = 5


class _Lane:
    """A number of bytes that requests share."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, size: int) -> None:
        """Returns when `size` more bytes fit. Raises RefusalError."""
        if not self._waiting and self._fits(size):
            self._used += size
            return
        if len(self._waiting) >= WAITING:
            raise _busy()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            async with asyncio.timeout(WAIT_S):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.release(size)
            else:
                self._waiting.remove((size, turn))
                self._wake()
            if isinstance(error, TimeoutError):
                raise _busy() from None
            raise

    def admit(self, size: int) -> None:
        """Adds bytes that are in memory already, wait who may."""
        self._used += size

    def release(self, size: int) -> None:
        """Returns bytes, and lets those who wait for them go on."""
        self._used -= size
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            self._used += size
            turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return self._used == 0 or self._used + size <= self._limit


class ByteBudget:
    """The bytes of one process."""

    def __init__(self, large_bytes: int) -> None:
        """`large_bytes`: of all bodies over `SMALL` together; a single body always fits."""
        self._small = _Lane(SMALL_BYTES)
        self._large = _Lane(large_bytes)
        self._of_keys: Counter[str] = Counter()

    def reservation(self, claim_id: str) -> Reservation:
        """A reservation of no bytes yet, for a request with this claim's key. Use it as a context."""
        return Reservation(self, claim_id)

    def _lane(self, size: int) -> _Lane:
        return self._small if size <= SMALL else self._large


class Reservation:
    """The bytes of one request, until the context ends."""

    def __init__(self, budget: ByteBudget, claim_id: str) -> None:
        self._budget = budget
        self._claim_id = claim_id
        self._size = 0

    async def grow(self, size: int) -> None:
        """Reserves `size` bytes instead of fewer; waits for them. Raises RefusalError (429)."""
        budget = self._budget
        self.shrink(0)
        if budget._of_keys[self._claim_id] + size > KEY_BYTES:
            raise RefusalError(
                Refusal.OVERLOADED,
                f"this session's requests under way have over {KEY_BYTES} bytes together; try again",
                retry_after_s=RETRY_AFTER_S,
            )
        budget._of_keys[self._claim_id] += size
        try:
            await budget._lane(size).acquire(size)
        except BaseException:
            self._forget(size)
            raise
        self._size = size

    def shrink(self, size: int) -> None:
        """Keeps `size` of the bytes."""
        if self._size <= size:
            return
        before, after = self._budget._lane(self._size), self._budget._lane(size)
        if before is after:
            before.release(self._size - size)
        else:
            before.release(self._size)
            after.admit(size)
        self._forget(self._size - size)
        self._size = size

    def _forget(self, size: int) -> None:
        self._budget._of_keys[self._claim_id] -= size
        if not self._budget._of_keys[self._claim_id]:
            del self._budget._of_keys[self._claim_id]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shrink(0)


def _busy() -> RefusalError:
    return RefusalError(
        Refusal.OVERLOADED,
        "the proxy has no memory for this request's body beside those that it works on; try again",
        retry_after_s=RETRY_AFTER_S,
    )
