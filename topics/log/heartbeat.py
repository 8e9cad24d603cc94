"""A process's heart: it says on `polar.workers` that the process lives, and what it has in hand (protocol 13).

Own thread, own loop, own producer, so that a busy main loop doesn't cost the lease. The beat itself is taken on the main loop, since it
tells that loop's state; one that hasn't ticked for 5 s gets none, since a hung process must lose its lease. Invariant: only the newest
beat is ever sent: what isn't acknowledged in time is cut off, not queued.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable

import structlog

from topics.contract.codec import encode
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.refusals import refusal
from topics.workers import TOPIC, Backlog, Heartbeat, StageSlots

INTERVAL_S = 2.0
LEAST_GAP_S = 0.1
"""At most ten a second."""
HUNG_S = 5.0
CONNECTED_S = 4.0
"""Two intervals."""
ACK_S = 2.0
TICK_S = 0.25
"""How long a beat waits for the main loop before the one before is sent."""
RETRY_S = 0.3
STOP_S = 2.0

log = structlog.get_logger()


def new_worker_id(role: str) -> str:
    """An id of this process start: `<role>-<host>-<8 hex>`."""
    return f"{role}-{socket.gethostname()}-{secrets.token_hex(4)}"


class HeartbeatSender:
    """Beats from `start` to `stop`; both are called on the main loop, `changed` from anywhere."""

    def __init__(self, settings: Settings, beat: Callable[[], Heartbeat]) -> None:
        """`beat` is called on the loop that starts the heart; it must be quick and not raise."""
        self._settings = settings
        self._beat = beat
        self._thread: threading.Thread | None = None
        self._pulse: asyncio.AbstractEventLoop | None = None
        """The thread's own loop."""
        self._wake = asyncio.Event()
        """Something changed, or the heart is to stop."""
        self._ticked = asyncio.Event()
        """The main loop has given a beat since it was asked."""
        self._stopping = False
        self._main: asyncio.AbstractEventLoop | None = None
        self._newest: tuple[Heartbeat, float] | None = None
        """With the time when it was taken."""
        self._acknowledged_at: float | None = None
        self._first = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether a heartbeat was acknowledged within the last 4 s."""
        at = self._acknowledged_at
        return at is not None and time.monotonic() - at < CONNECTED_S

    def start(self) -> None:
        """Take a first beat and send it as soon as a broker answers."""
        self._main = asyncio.get_running_loop()
        self._pulse = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(self._pulse,), name="heart", daemon=True)
        self._take()
        self._thread.start()

    def changed(self) -> None:
        """Slots or claims changed: beat at once, if the last beat is 0.1 s ago. From any thread."""
        self._tell(self._pulse, self._wake.set)

    async def first_beat(self, deadline_s: float) -> None:
        """Wait until a heartbeat was acknowledged (protocol 18). Raises TimeoutError."""
        async with asyncio.timeout(deadline_s):
            await self._first.wait()

    def stop(self) -> None:
        """Send a last beat, as `beat` now tells it, and end; at most 4 s, with the broker away."""
        if self._thread is None or not self._thread.is_alive():
            return
        self._take()
        self._stopping = True
        self.changed()
        self._thread.join(timeout=2 * STOP_S)

    @staticmethod
    def heartbeat(
        worker_id: str,
        role: str,
        *,
        stages: list[StageSlots] | None = None,
        address: str | None = None,
        fleet_generation: int = 0,
        leaving: bool = False,
        backlogs: list[Backlog] | None = None,
        staged: dict[str, int] | None = None,
        calls: int = 0,
    ) -> Heartbeat:
        """A heartbeat of this process."""
        return Heartbeat(
            worker_id=worker_id,
            role=role,
            host=socket.gethostname(),
            pid=os.getpid(),
            stages=stages or [],
            address=address,
            fleet_generation=fleet_generation,
            leaving=leaving,
            backlogs=backlogs or [],
            staged=staged or {},
            calls=calls,
        )

    # --- on the main loop

    def _take(self) -> None:
        self._newest = (self._beat(), time.monotonic())
        self._tell(self._pulse, self._ticked.set)

    # --- on the heart's own loop

    def _run(self, pulse: asyncio.AbstractEventLoop) -> None:
        try:
            pulse.run_until_complete(self._live())
        except Exception:
            # The process then loses its lease, which is what a dead heart means.
            log.exception("heart died", action="heart.died")
        finally:
            pulse.close()

    async def _live(self) -> None:
        producer: kafka.Producer | None = None
        while True:
            last = self._stopping
            self._wake.clear()
            began = time.monotonic()
            beat = await self._ask()
            try:
                if producer is None:
                    producer = await self._connect()
                if beat is not None:
                    await self._send(producer, beat)
            except (kafka.KafkaError, OSError, TimeoutError) as error:
                why = refusal(self._settings, error) or repr(error)
                log.info("no heartbeat", action="heart.skipped", reason=str(why))
                if producer is not None:
                    await kafka.stop(producer, 0.0)
                    producer = None
            if last:
                break
            await self._pause(began, RETRY_S if producer is None else INTERVAL_S)
        if producer is not None:
            await kafka.stop(producer, STOP_S)

    async def _ask(self) -> Heartbeat | None:
        """The newest beat, the one before where the main loop is busy, None where it hasn't ticked for 5 s."""
        if not self._stopping:
            self._ticked.clear()
            self._tell(self._main, self._take)
            try:
                async with asyncio.timeout(TICK_S):
                    await self._ticked.wait()
            except TimeoutError:
                pass
        assert self._newest is not None, "start() takes the first"
        beat, taken_at = self._newest
        return beat if time.monotonic() - taken_at < HUNG_S else None

    async def _connect(self) -> kafka.Producer:
        # Idempotence would retry for ever; a heartbeat that is late is worth nothing.
        producer = kafka.producer(
            self._settings,
            max_bytes=TOPIC.max_bytes,
            enable_idempotence=False,
            request_timeout_ms=int(ACK_S * 1000),
        )
        try:
            async with asyncio.timeout(ACK_S):
                await producer.start()
        except BaseException:
            await kafka.stop(producer, 0.0)
            raise
        return producer

    async def _send(self, producer: kafka.Producer, beat: Heartbeat) -> None:
        name = TOPIC.full_name(self._settings.namespace)
        async with asyncio.timeout(ACK_S):
            await (await producer.send(name, encode(beat), key=beat.worker_id.encode()))
        is_first, self._acknowledged_at = self._acknowledged_at is None, time.monotonic()
        if is_first:
            self._tell(self._main, self._first.set)

    async def _pause(self, began: float, interval_s: float) -> None:
        """Until something changes, at most `interval_s` and at least 0.1 s after `began`."""
        try:
            async with asyncio.timeout(began + interval_s - time.monotonic()):
                await self._wake.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(began + LEAST_GAP_S - time.monotonic())

    @staticmethod
    def _tell(loop: asyncio.AbstractEventLoop | None, what: Callable[[], object]) -> None:
        """Run `what` on the other loop soon; a loop that has ended has no use for it."""
        try:
            if loop is not None:
                loop.call_soon_threadsafe(what)
        except RuntimeError:
            pass
