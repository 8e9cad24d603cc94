"""Keeps the embedded Kafka of `polar up` running on its port; the broker's blocking calls run in threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from polar.embedded import disk
from polar.embedded.broker import Broker
from polar.embedded.distribution import Meter
from polar.embedded.errors import BrokerError
from polar.embedded.properties import Security
from polar.embedded.restart_policy import RestartPolicy
from topics.environment.cache import CacheError
from topics.types.errors import NotReadyError
from topics.waiting.first_done import first_done

POLL_S = 0.2
"""Between two checks of the broker and of a full disk."""


class Kafka:
    """A broker on DATA/kafka."""

    def __init__(
        self, data: Path, *, announce: Callable[[str], None], security: Security, meter: Meter | None = None
    ) -> None:
        self._data = data
        self._broker = Broker(data, announce=announce, meter=meter, security=security)
        self._announce = announce
        self._starting: asyncio.Future[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    async def start(self) -> None:
        """Start the broker. Raises NotReadyError if it can't be installed or started."""
        self._starting = _in_thread(self._broker.start)
        try:
            # Cancelling us doesn't end the thread: `stop` waits for it.
            await asyncio.shield(self._starting)
        except (BrokerError, CacheError) as error:
            raise NotReadyError(str(error)) from None

    async def keep(self) -> None:
        """Restart the broker whenever it dies, until `stop`. Raises NotReadyError after too many deaths."""
        policy = RestartPolicy()
        policy.started()
        while not self._stopping.is_set():
            if self._broker.alive():
                await first_done(self._stopping, timeout_s=POLL_S)
                continue
            if obstacle := disk.obstacle(self._data):
                self._announce(
                    f"Kafka has died: {obstacle}, and Kafka is started again; "
                    "until then calls wait, and fail after their timeout"
                )
                while disk.obstacle(self._data) and not self._stopping.is_set():
                    await first_done(self._stopping, timeout_s=POLL_S)
                policy = RestartPolicy()
                policy.started()
            pause_s = policy.next_pause_s()
            if pause_s is None:
                raise NotReadyError("Kafka dies again and again; its logs are in kafka/logs of the data folder")
            self._announce("Kafka has died; starting it again")
            await first_done(self._stopping, timeout_s=pause_s)
            if self._stopping.is_set():
                return
            policy.started()
            try:
                await self.start()
            except NotReadyError as error:
                self._announce(str(error))

    async def stop(self, deadline_s: float) -> None:
        """Stop cleanly, or by force after `deadline_s`."""
        self._stopping.set()
        if self._starting is not None:
            done, _ = await asyncio.wait({self._starting}, timeout=deadline_s)
            if not done:  # a download, which ends with this process
                return
        stopping = _in_thread(self._broker.stop)
        done, _ = await asyncio.wait({stopping}, timeout=deadline_s)
        if not done:
            self._announce(f"Kafka didn't stop within {deadline_s:.0f} s; killing it")
            await _in_thread(self._broker.kill)
        await stopping


def _in_thread(call: Callable[[], None]) -> asyncio.Future[None]:
    """Run a blocking call in a daemon thread: unlike an executor's, a stuck one doesn't keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
            future.exception()  # marks it as retrieved: perhaps nobody waits for it

    def run() -> None:
        error: BaseException | None = None
        try:
            call()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name=f"kafka-{getattr(call, '__name__', '')}", daemon=True).start()
    return future
