"""One proxy process, put together: what it opens, in which order, and how it ends.

Invariant (protocol 18): the port listens only after this process's heartbeat was acknowledged and `polar.fleet` and `polar.control` were
read to their ends. Stopping lets calls under way finish within a deadline, tells the others to come again, and never waits for Kafka.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from aiohttp import web

from polar.keys import Signer
from polar.settings import Settings
from polar.types.errors import NotReady
from proxy import control, wire_log
from proxy.auth import Authenticator
from proxy.call import Pipeline
from proxy.capture import Capture
from proxy.control_api import ControlApi
from proxy.dialects.base import Dialect
from proxy.engines.pool import Engines
from proxy.fleet import Fleet
from proxy.front import Front
from proxy.metrics import Metrics
from proxy.opening import Openings
from proxy.recovery import Recovery
from proxy.session import Claims
from topics import control as control_topic
from topics import fleet as fleet_topic
from topics.control import CloseKey, Control
from topics.follow import Follower, Since
from topics.heartbeat import Heart, new_worker_id
from topics.producer import LogProducer
from topics.workers import Heartbeat

CONTROL_SINCE_S = 600.0
"""How far back `polar.control` is read at start (protocol 18)."""
HEARTBEAT_S = 60.0
"""For the first heartbeat's acknowledgement: Kafka may still be starting."""
DRAIN_S = 10.0
"""For calls under way, when the proxy is told to stop."""
SETTLE_S = 2.0
"""For records beside the calls, after that."""
STOP_S = 3.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Binding:
    """Where a port listens; port 0 takes a free one."""

    host: str
    port: int


class Proxy:
    """A proxy in this event loop. `start`, then `failed` or your own reason, then `stop`."""

    def __init__(
        self, settings: Settings, engines: Engines, dialects: Sequence[Dialect], calls: Binding, controls: Binding
    ) -> None:
        """Raises FileNotFoundError for a keys file or token file that isn't there, InputError for an empty token file."""
        self._settings = settings
        self._engines = engines
        self._bindings = calls, controls
        self._metrics = Metrics()
        self._fleet = Fleet()
        self._producer = LogProducer(settings)
        self._capture = Capture(self._producer, self._metrics)
        self._claims = Claims(Recovery(settings).read_back, lambda _: 0.0)
        pipeline = Pipeline(engines, self._producer, self._capture, self._fleet, self._metrics)
        signer = Signer.from_file(settings.keys_path)
        self._front = Front(dialects, Authenticator(signer), self._claims, pipeline, self._metrics)
        self._openings = Openings(self._producer)
        token = control.token_in(settings.control_token_file)
        api = ControlApi(
            self._openings,
            engines,
            signer,
            token=token,
            proxy_url=lambda: (settings.proxy_url or self.url).rstrip("/"),
            is_serving=lambda: self._serving,
        )
        self._controls = control.application(self._metrics, self.obstacle, api, token)
        self._worker_id = new_worker_id("proxy")
        self._heart = Heart(settings, self._beat)
        self._followers = (
            Follower(settings, fleet_topic.TOPIC, self._on_fleet, since=Since.BEGINNING, letters=self._producer),
            Follower(
                settings,
                control_topic.TOPIC,
                self._on_control,
                since=Since.ago(CONTROL_SINCE_S),
                letters=self._producer,
            ),
        )
        self._runners: list[web.AppRunner] = []
        self._door: socket.socket | None = None
        self._metrics.watch_engines(engines)
        self._metrics.watch("polar_proxy_claims", "Claims remembered", lambda: len(self._claims))
        self._serving = False
        self._leaving = asyncio.Event()
        self.url = ""
        """Base of the model API, without `/v1`; known once started."""
        self.control_url = ""

    async def start(self) -> None:
        """Returns when calls are served. Raises NotReady, OSError for a port that is taken."""
        calls, controls = self._bindings
        self.control_url = await self._listen(self._controls, _bound(controls))
        self._door = _bound(calls)
        self.url = _url(self._door)
        await self._engines.start()
        await self._producer.start()
        self._heart.start()
        await self._first_heartbeat()
        for follower in self._followers:
            await follower.start()
        self._claims.known_from(time.time())
        await self._listen(self._front.application(), self._door)
        self._serving = True
        log.info(
            "proxy serves", action="proxy_serves", url=self.url, control_url=self.control_url, worker_id=self._worker_id
        )

    async def left(self) -> None:
        """Returns when the proxy was told to leave by a `Drain`; raises what ended a follower."""
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            done, _ = await asyncio.wait(
                [leaving, *(follower.failed for follower in self._followers)], return_when=asyncio.FIRST_COMPLETED
            )
            for future in done:
                future.result()
        finally:
            leaving.cancel()

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Ends within the drain and some seconds, with Kafka or without."""
        self._serving = False
        self._front.draining = True
        self._heart.changed()
        under_way = [reply.done for reply in self._front.replies]
        if under_way:
            await asyncio.wait(under_way, timeout=drain_s)
        for reply in self._front.replies:
            reply.end("stopped")
        for runner in reversed(self._runners):
            await runner.cleanup()
        if self._door is not None:
            self._door.close()  # where start() ended before it listened
        await asyncio.gather(self._capture.settle(SETTLE_S), self._openings.settle(SETTLE_S))
        await asyncio.gather(*(follower.stop() for follower in self._followers), self._producer.stop(STOP_S))
        await self._engines.stop()
        self._heart.stop()  # last: it holds the loop up until its last beat is out
        log.info("proxy stopped", action="proxy_stopped", worker_id=self._worker_id)

    def obstacle(self) -> str | None:
        """Why calls aren't served now; None when they are."""
        if not self._serving:
            return "stopping" if self._front.draining else "starting"
        if not self._heart.connected:
            return "Kafka doesn't acknowledge heartbeats; calls wait"
        if self._fleet.paused:
            return "the fleet is paused; calls wait"
        return None

    async def _first_heartbeat(self) -> None:
        try:
            await self._heart.first_beat(HEARTBEAT_S)
        except TimeoutError:
            raise NotReady(
                f"Kafka acknowledged no heartbeat within {HEARTBEAT_S:.0f} s; are the topics there?"
            ) from None

    async def _listen(self, app: web.Application, door: socket.socket) -> str:
        runner = web.AppRunner(
            app, access_log=None, logger=wire_log.LOGGER, handler_cancellation=True, shutdown_timeout=STOP_S
        )
        self._runners.append(runner)
        await runner.setup()
        await web.SockSite(runner, door, backlog=1024).start()
        return _url(door)

    def _beat(self) -> Heartbeat:
        return Heart.describe(
            self._worker_id,
            "proxy",
            address=self.url,
            fleet_generation=self._fleet.generation,
            leaving=self._front.draining,
        )

    def _on_fleet(self, record: fleet_topic.FleetRecord, _: object) -> None:
        self._fleet.apply(record)
        # `pause` counts the generations that heartbeats echo.
        self._heart.changed()

    def _on_control(self, record: Control, _: object) -> None:
        self._openings.on_control(record)
        match record:
            case CloseKey():
                self._claims.close(record.claim_id)
            case control_topic.Drain() if record.worker_id == self._worker_id:
                self._leaving.set()
            case _:
                pass


def _bound(binding: Binding) -> socket.socket:
    """A socket that has its port and doesn't listen yet, so that the first heartbeat can name it."""
    family, kind, _, _, address = socket.getaddrinfo(binding.host, binding.port, type=socket.SOCK_STREAM)[0]
    door = socket.socket(family, kind)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(address)
    except OSError:
        door.close()
        raise
    return door


def _url(door: socket.socket) -> str:
    host, port = door.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
