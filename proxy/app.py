"""One proxy process: its parts, the order in which they start, and how it stops.

Invariant (protocol 18): the port listens only after this process's heartbeat was acknowledged and `polar.fleet`, `polar.control` and
`polar.workers` were read to their ends; only then is it among the owners of sessions. Stopping lets calls under way finish within a
deadline, leaves its sessions to the other proxies, and never waits for Kafka.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from functools import partial

import structlog
from aiohttp import web

from proxy import openapi
from proxy.addresses import Binding, bound, require_address, url
from proxy.auth import Authenticator
from proxy.blob_writer import BlobWriter
from proxy.byte_budget import MIB, ByteBudget
from proxy.call import Pipeline
from proxy.capture import Capture
from proxy.control import port as control
from proxy.control.api import ControlApi
from proxy.control.opening import SessionOpener
from proxy.dialects.base import Dialect
from proxy.engine_processes import EngineProcesses, ProcessWriter
from proxy.engines.pool import Engines
from proxy.fleet import Fleet
from proxy.image_urls import ImageHosts
from proxy.media import PromptMedia
from proxy.metrics import ProxyMetrics
from proxy.peers.forwarding import Forwarder
from proxy.peers.ownership import Ownership
from proxy.peers.routing import Router
from proxy.policy import VersionAttribution
from proxy.refused_requests import RefusedRequests
from proxy.replay_store import ReplayStore
from proxy.request_limits import PARSED_BYTES
from proxy.routes import ModelApi
from proxy.session.claim_cache import ClaimCache
from proxy.session.endings import Ending
from proxy.session.recovery import Recovery
from proxy.unreadable import Runner
from topics import control as control_topic
from topics import fleet as fleet_topic
from topics import workers as workers_topic
from topics.control import CloseKey, Control, Drain
from topics.environment import blob_store
from topics.environment.blobs import BlobStore
from topics.environment.keys import Keyring
from topics.environment.settings import Settings
from topics.fleet import EngineProcess
from topics.log import kafka
from topics.log.follow import Follower, Since
from topics.log.heartbeat import GATHER_S, HeartbeatSender, new_worker_id
from topics.log.producer import LogProducer
from topics.types.errors import NotReadyError
from topics.waiting.first_done import first_done
from topics.workers import Heartbeat

CONTROL_SINCE_S = 600.0
"""How far back `polar.control` is read at start (protocol 18)."""
WORKERS_SINCE_S = 10.0
"""How far back `polar.workers` is read at start (protocol 30)."""
HEARTBEAT_S = 60.0
"""For the first heartbeat's acknowledgement: Kafka may still be starting."""
DRAIN_S = 10.0
"""For calls under way when the proxy stops."""
SETTLE_S = 2.0
"""For background records, after the calls."""
STOP_S = 3.0
"""For followers, the producer and open connections to stop: short, since Kafka may be gone."""
KEEPALIVE_S = 75.0
"""For a connection without a whole request head: longer than load balancers keep idle connections."""
LINGER_S = 1.0
"""For reading the rest of a refused body, so that its sender reads the answer."""

log = structlog.get_logger(__name__)


class Proxy:
    """A proxy in this event loop: `start`, wait for `left` or a reason of your own, `stop`."""

    def __init__(
        self,
        settings: Settings,
        engines: Engines,
        dialects: Sequence[Dialect],
        calls: Binding,
        controls: Binding,
        *,
        peers: Binding | None = None,
        advertise: str | None = None,
    ) -> None:
        """`peers`: a port for other proxies, if that of `calls` is shared. `advertise`: the URL at which they reach it.

        Raises FileNotFoundError for a missing keys file or token file, InputError for an empty token file, no URL, or a bad image host.
        """
        require_address((peers or calls).host, advertise)
        self._settings = settings
        self._peers = peers
        self._advertise = advertise
        self._engines = engines
        self._bindings = calls, controls
        self._metrics = ProxyMetrics()
        self._fleet = Fleet(lambda: self._heart.changed())
        self._producer = LogProducer(settings)
        self._process_writer = ProcessWriter(self._producer)
        self._processes = EngineProcesses({each.name: each.urls for each in engines}, self._process_writer.write)
        self._capture = Capture(self._producer, self._metrics)
        self._worker_id = new_worker_id("proxy")
        self._ownership = Ownership(self._worker_id)
        keyring = Keyring(settings.keys_path)
        self._forwarder = Forwarder(self._worker_id, self._ownership, keyring)
        self._claims = ClaimCache(
            Recovery(settings, self._metrics).read_back, self._ownership.since, self._ownership.now
        )
        self._ownership.on_change(lambda: self._claims.release(self._ownership.is_mine))
        routes = Router(self._ownership, self._claims, self._metrics)
        versions = VersionAttribution(self._processes, self._metrics)
        captures = any(engine.capture for engine in settings.engines.values())
        self._blobs = BlobWriter(blob_store.of(settings) if captures else _blobs(settings))
        media = PromptMedia(self._blobs, self._metrics)
        replay = ReplayStore(self._blobs, self._metrics) if captures else None
        pipeline = Pipeline(engines, self._producer, self._capture, self._fleet, versions, self._metrics, media, replay)
        authenticator = Authenticator(keyring, settings.namespace)
        self._model_api = ModelApi(
            dialects,
            authenticator,
            routes,
            self._forwarder,
            ImageHosts(settings.image_hosts),
            ByteBudget(settings.large_bodies_mib * MIB),
            pipeline,
            self._metrics,
            RefusedRequests(authenticator, self._claims.knows_closed, self._capture.refused),
        )
        self._openings = SessionOpener(self._producer)
        token = control.token_in(settings.control_token_file)
        api = ControlApi(
            self._openings,
            engines,
            keyring,
            namespace=settings.namespace,
            token=token,
            proxy_url=lambda: (settings.proxy_url or self.url).rstrip("/"),
            is_serving=lambda: self._serving,
        )
        self._controls = control.application(self._metrics, self.obstacle, api, token, partial(openapi.text, dialects))
        self._heart = HeartbeatSender(settings, self._beat)
        self._followers = self._following(settings)
        self._runners: list[web.AppRunner] = []
        self._listeners: list[socket.socket] = []
        self._metrics.watch_engines(engines)
        self._metrics.watch("polar_proxy_claims", "Claims remembered", lambda: len(self._claims))
        self._metrics.watch("polar_proxy_claim_bytes", "Memory of the claims, about", lambda: self._claims.size)
        self._metrics.watch("polar_proxy_paused", "Whether the fleet is paused", lambda: self._fleet.paused)
        self._metrics.watch("polar_proxy_live", "Live proxies", lambda: len(self._ownership.peers))
        self._serving = False
        self._leaving = asyncio.Event()
        self.url = ""
        """Base of the model API, without `/v1`; known once started."""
        self.control_url = ""
        self._address: str | None = None
        """The URL at which other proxies reach this one; None until it serves."""

    async def start(self) -> None:
        """Returns when calls are served. Raises NotReadyError, OSError if a port is in use."""
        calls, controls = self._bindings
        self.control_url = url(await self._listen(self._controls, [bound(controls)]))
        self._listeners = [bound(binding) for binding in (calls, self._peers) if binding is not None]
        self.url = url(self._listeners[0])
        await self._forwarder.start()
        await self._producer.start()
        self._heart.start()
        await self._first_heartbeat()
        for follower in self._followers:
            await follower.start()
        # Now that `polar.fleet` is read: only processes that it doesn't know are written to it.
        await self._engines.start(self._processes.found)
        self._claims.follows_since(self._ownership.now())
        await self._listen(self._model_api.application(), self._listeners)
        self._address = self._advertise or url(self._listeners[-1])
        await self._first_ownership()
        self._serving = True
        log.info(
            "proxy serves", action="proxy_serves", url=self.url, control_url=self.control_url, worker_id=self._worker_id
        )

    async def left(self) -> None:
        """Returns when a `Drain` names this proxy; raises the exception that ended a follower."""
        await first_done(self._leaving, *(follower.failed for follower in self._followers))

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Stops within `drain_s` and some seconds, with Kafka or without."""
        self._serving = False
        self._model_api.draining = True
        self._ownership.leave()
        self._heart.changed()
        await self._drained(drain_s)
        for reply in self._model_api.replies:
            reply.end(Ending.STOPPED)
        for runner in reversed(self._runners):
            await runner.cleanup()
        for listener in self._listeners:
            listener.close()  # where start() ended before it listened
        await self._engines.stop()  # before records are settled: a process that is identified later would write one
        settling = (self._capture, self._openings, self._process_writer)
        await asyncio.gather(*(each.settle(SETTLE_S) for each in settling))
        await asyncio.gather(*(follower.stop() for follower in self._followers), self._producer.stop(STOP_S))
        await self._forwarder.stop()
        self._blobs.stop()
        self._heart.stop()  # last: it blocks the loop until its last heartbeat is out
        log.info("proxy stopped", action="proxy_stopped", worker_id=self._worker_id)

    def _following(self, settings: Settings) -> tuple[Follower, ...]:
        """Followers of the topics that are read all the time."""
        ago = Since.ago(CONTROL_SINCE_S)
        return (
            Follower(settings, fleet_topic.TOPIC, self._on_fleet, since=Since.BEGINNING, letters=self._producer),
            Follower(settings, control_topic.TOPIC, self._on_control, since=ago, letters=self._producer),
            # Coordinators read this topic too, and write its dead letters.
            Follower(
                settings,
                workers_topic.TOPIC,
                self._ownership.on_sign,
                since=Since.ago(WORKERS_SINCE_S),
                gather_s=GATHER_S,
            ),
        )

    def obstacle(self) -> str | None:
        """Why calls aren't served now; None if they are. A pause is no obstacle: calls are accepted, and wait."""
        if not self._serving:
            return "stopping" if self._model_api.draining else "starting"
        if not self._heart.connected:
            return "Kafka doesn't acknowledge heartbeats; calls wait"
        if not self._ownership.lives:
            return "the other proxies don't count this one in; does another advertise its address?"
        return None

    async def _first_heartbeat(self) -> None:
        try:
            await self._heart.first_beat(HEARTBEAT_S)
        except TimeoutError:
            raise NotReadyError(
                f"Kafka acknowledged no heartbeat within {HEARTBEAT_S:.0f} s; are the topics there?"
            ) from None

    async def _first_ownership(self) -> None:
        """Returns when this proxy has read its own heartbeat from the log, as the others do."""
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                while not self._ownership.lives:
                    change = self._ownership.next_change()
                    self._heart.changed()
                    await change.wait()
        except TimeoutError:
            raise NotReadyError(f"this proxy's heartbeat could not be read back within {HEARTBEAT_S:.0f} s") from None

    async def _drained(self, deadline_s: float) -> None:
        """Returns when no call is under way, here or forwarded."""
        try:
            async with asyncio.timeout(deadline_s):
                while under_way := [reply.done for reply in self._model_api.replies if not reply.done.done()]:
                    await asyncio.wait(under_way)
        except TimeoutError:
            pass

    async def _listen(self, app: web.Application, listeners: Sequence[socket.socket]) -> socket.socket:
        runner = Runner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=STOP_S,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
            auto_decompress=False,  # before a key is looked at, nothing is
            max_line_size=PARSED_BYTES,
            max_field_size=PARSED_BYTES,
        )
        self._runners.append(runner)
        await runner.setup()
        for listener in listeners:
            await web.SockSite(runner, listener, backlog=1024).start()
        return listeners[0]

    def _beat(self) -> Heartbeat:
        return HeartbeatSender.heartbeat(
            self._worker_id,
            "proxy",
            address=self._address,
            fleet_generation=self._fleet.generation,
            leaving=self._model_api.draining,
            calls=self._fleet.calls,
        )

    def _on_fleet(self, record: fleet_topic.FleetRecord, envelope: kafka.Record) -> None:
        if isinstance(record, EngineProcess):
            self._processes.read(record, envelope.offset)
        else:
            self._fleet.apply(record, envelope.offset, envelope.timestamp)

    def _on_control(self, record: Control, envelope: kafka.Record) -> None:
        self._openings.on_control(record, envelope.timestamp)
        if isinstance(record, CloseKey):
            self._claims.close(record.claim_id)
        elif isinstance(record, Drain) and record.worker_id == self._worker_id:
            self._leaving.set()


def _blobs(settings: Settings) -> BlobStore | None:
    """Where media of prompts are stored; None if this process can't use the store: calls are recorded all the same."""
    try:
        return blob_store.of(settings)
    except NotReadyError as error:
        log.warning("media of prompts won't be stored", action="no_blob_store", reason=str(error))
        return None
