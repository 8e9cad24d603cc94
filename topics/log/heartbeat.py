"""Sends a process's heartbeats to `polar.workers`: that the process lives, and its slots and claims (protocol 13).

The sender has its own thread, event loop and producer, so that a busy main loop doesn't cost the lease. The main loop makes the heartbeat,
since it reports that loop's state. If the main loop hangs for 5 s no heartbeat is sent, since a hung process must lose its lease.
Invariant: only the newest heartbeat is sent; one that isn't acknowledged in time is cut off, not queued.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import structlog

from topics.contract.codec import encode
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.refusals import refusal
from topics.waiting.first_done import first_done
from topics.workers import TOPIC, Backlog, Heartbeat, StageSlots

INTERVAL_S = 2.0
"""At most this long from one heartbeat to the next."""
LEAST_GAP_S = 0.1
"""At most ten heartbeats a second."""
GATHER_S = 0.1
"""For readers that act on heartbeats: the processes of a host send theirs within this time."""
HUNG_S = 5.0
"""Without an answer for so long the main loop hangs; shorter than the lease of 6 s."""
CONNECTED_S = 4.0
"""Two intervals."""
ACK_S = 2.0
"""Limit for an acknowledgement: by then the next heartbeat is due."""
TICK_S = 0.25
"""Wait for the main loop's heartbeat; after that the previous one is sent."""
RETRY_S = 0.3
STOP_S = 2.0

log = structlog.get_logger()


def new_worker_id(role: str) -> str:
    """A new id for this start of a process: `<role>-<host>-<8 hex>`."""
    return f"{role}-{socket.gethostname()}-{secrets.token_hex(4)}"


def _until_next_s() -> float:
    """Seconds to this host's next heartbeat. All its processes send theirs together, and a reader gets them in one or two fetches, where
    each reader would need one fetch for each of them. Hosts differ, so that brokers don't get the whole fleet's at once.
    """
    phase_s = zlib.crc32(socket.gethostname().encode()) / 2**32 * INTERVAL_S
    return INTERVAL_S - (time.time() - phase_s) % INTERVAL_S


class HeartbeatSender:
    """Sends from `start` to `stop`, which are called on the main loop; `changed` may be called from any thread."""

    def __init__(self, settings: Settings, beat: Callable[[], Heartbeat]) -> None:
        """`beat` makes the heartbeat, on the loop that calls `start`; it must be quick and not raise."""
        self._settings = settings
        self._beat = beat
        self._thread: threading.Thread | None = None
        self._pulse: asyncio.AbstractEventLoop | None = None
        """The thread's own loop."""
        self._wake = asyncio.Event()
        """Set when something changed, or to stop."""
        self._ticked = asyncio.Event()
        """Set when the main loop has made the requested heartbeat."""
        self._stopping = False
        self._main: asyncio.AbstractEventLoop | None = None
        self._newest: tuple[Heartbeat, float] | None = None
        """With the time when it was made."""
        self._acknowledged_at: float | None = None
        self._first = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether a heartbeat was acknowledged within the last 4 s."""
        at = self._acknowledged_at
        return at is not None and time.monotonic() - at < CONNECTED_S

    def start(self) -> None:
        """Make a first heartbeat and send it as soon as a broker answers."""
        self._main = asyncio.get_running_loop()
        self._pulse = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(self._pulse,), name="heart", daemon=True)
        self._take()
        self._thread.start()

    def changed(self) -> None:
        """Send a heartbeat at once, since slots or claims changed; at most one in 0.1 s."""
        self._tell(self._pulse, self._wake.set)

    async def first_beat(self, deadline_s: float) -> None:
        """Wait until a heartbeat was acknowledged (protocol 18). Raises TimeoutError."""
        async with asyncio.timeout(deadline_s):
            await self._first.wait()

    def stop(self) -> None:
        """Send a last heartbeat and end; takes at most 4 s, without a broker."""
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
        stages: Sequence[StageSlots] = (),
        address: str | None = None,
        fleet_generation: int = 0,
        leaving: bool = False,
        backlogs: Sequence[Backlog] = (),
        staged: Mapping[str, int] = MappingProxyType({}),
        calls: int = 0,
        obstacle: str = "",
    ) -> Heartbeat:
        """A heartbeat of this process."""
        return Heartbeat(
            worker_id,
            role,
            socket.gethostname(),
            os.getpid(),
            stages=list(stages),
            address=address,
            fleet_generation=fleet_generation,
            leaving=leaving,
            backlogs=list(backlogs),
            staged=dict(staged),
            calls=calls,
            obstacle=obstacle,
        )

    def _take(self) -> None:
        """On the main loop; the methods below run on the sender's own loop."""
        self._newest = (self._beat(), time.monotonic())
        self._tell(self._pulse, self._ticked.set)

    def _run(self, pulse: asyncio.AbstractEventLoop) -> None:
        try:
            pulse.run_until_complete(self._live())
        except Exception:
            # The process loses its lease, as it must when nothing sends its heartbeats.
            log.exception("heartbeats ended", action="heart.died")
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
            pause_s = RETRY_S if producer is None else _until_next_s()
            await first_done(self._wake, timeout_s=pause_s)
            await asyncio.sleep(began + LEAST_GAP_S - time.monotonic())
        if producer is not None:
            await kafka.stop(producer, STOP_S)

    async def _ask(self) -> Heartbeat | None:
        """The main loop's heartbeat, the previous one while that loop is busy, None once it has hung for 5 s."""
        if not self._stopping:
            self._ticked.clear()
            self._tell(self._main, self._take)
            await first_done(self._ticked, timeout_s=TICK_S)
        assert self._newest is not None, "start() takes the first"
        beat, taken_at = self._newest
        return beat if time.monotonic() - taken_at < HUNG_S else None

    async def _connect(self) -> kafka.Producer:
        # Idempotence would retry for ever, and a late heartbeat is worthless.
        producer = kafka.producer(
            self._settings, max_bytes=TOPIC.max_bytes, enable_idempotence=False, request_timeout_ms=int(ACK_S * 1000)
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

    @staticmethod
    def _tell(loop: asyncio.AbstractEventLoop | None, what: Callable[[], object]) -> None:
        """Run `what` on another loop soon, unless that loop has ended."""
        with suppress(RuntimeError):
            if loop is not None:
                loop.call_soon_threadsafe(what)
