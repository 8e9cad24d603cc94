"""`polar up`: runs Kafka, a proxy, the consumers, the stage workers and, without an engine of the user's, the scripted engine.

Invariant: every child process ends with this process and holds the data folder's lock; a child that dies is restarted on its old port.
DIR/polar.env, from which other commands learn the addresses, exists from the time they are known until the stop.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polar.embedded import readiness
from polar.embedded.child_process import ChildProcess
from polar.embedded.distribution import Meter
from polar.embedded.forks import Forks
from polar.embedded.kafka import Kafka
from polar.embedded.properties import NODE_USER, Security
from proxy.addresses import Binding, bound, url
from proxy.engines import probe
from proxy.engines.probe import ServedModel
from topics.contract import catalogue
from topics.environment import keys, private_files, webhook_signing
from topics.environment.s3 import S3Address
from topics.environment.settings import ENV_FILE, Settings, write_env_file
from topics.log import admin, logins, rights
from topics.types.completion import ReplayField
from topics.types.errors import NotReadyError
from topics.waiting.first_done import first_done

START_S = 90.0
"""For one child to answer, which takes a second or two on an idle machine."""
STAGES_STOP_S = 8.0
"""Stage workers kill their harnesses and hand back their sessions; they stop first, while the others still serve."""
OTHERS_STOP_S = 10.0
"""The proxy finishes its calls, the lake's writer its last files."""
KAFKA_STOP_S = 6.0
"""A clean stop takes about two seconds."""
DECIDING = ("fanout", "coordinator", "builder")
STAGES = ("init", "run", "evaluate")
LAKE = ("analytics", "webhooks")
SHARED = (
    "polar.cli.worker",
    "polar.cli.proxy",
    "consumers.fanout",
    "consumers.coordinator.coordinator",
    "consumers.building.builder",
    "consumers.stages.worker",
    "consumers.webhooks.worker",
    "proxy.run",
)
"""Modules that the parts get from the fork server. The lake's are left out: pyarrow starts threads, which a fork would lose."""
SCRIPTED = ("polar.scripted.app",)


@dataclass(frozen=True)
class Options:
    engine: ServedModel | None = None
    """None: the scripted engine."""
    mode: str = "chat"
    """The proxy's engine mode: `chat` or `tokens`."""
    capture: frozenset[ReplayField] = frozenset()
    """Values that the proxy stores for each call in addition to its tokens."""
    scripts: Sequence[Path] = ()
    """Script files of the scripted engine."""
    port: int = 0
    """The proxy's port; 0: any free port."""
    page_port: int = 0
    """The page's port; 0: that of the last time, or any free port."""
    metrics_port: int | None = None
    """The port of all parts' metrics; 0: any free port; None: no part tells metrics but the proxy."""


class System:
    """The processes of one data folder. Call `start`, then `keep`, and finally `stop`, even after an error."""

    def __init__(
        self,
        settings: Settings,
        options: Options,
        *,
        lock: int,
        announce: Callable[[str], None],
        meter: Meter | None = None,
    ) -> None:
        """Needs a running event loop. Uses `settings.kafka` if it is set, otherwise starts an embedded Kafka.

        `lock`: the data folder's, from `lock.claim`. `meter` shows the progress of Kafka's download.
        """
        self.addresses: dict[str, str] = {}
        """The variables of DIR/polar.env that are known so far."""
        self.engine = options.engine
        """The engine in use; set by `start` if the options name none."""
        self.metrics_url: str | None = None
        """Where Prometheus finds the metrics of all parts; None: nowhere."""
        self._user_settings = settings
        self._data = settings.data.absolute()
        self._options = options
        self._lock = lock
        self._announce = announce
        self._meter = meter
        self._kafka: Kafka | None = None
        self._operator: dict[str, str | None] = {}
        """Settings of the embedded broker's super user, whose login this process alone has."""
        self._children: list[ChildProcess] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._held: list[socket.socket] = []
        """Bound, so that their ports stay with us: those of children that listen, and the page's listener."""
        self._control_token = secrets.token_urlsafe(32)
        self._metrics_urls: dict[str, str] = {}
        """Where the parts tell their metrics, by their names."""
        modules = SHARED if options.engine else (*SHARED, *SCRIPTED)
        self._forks = Forks(f"polar up {self._data}", modules, self._data / "logs" / "fork-server.log", lock)
        self._doors = AsyncExitStack()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_scripted(self) -> bool:
        return self._options.engine is None

    async def start(self) -> None:
        """Start all processes and return when all of them serve. Raises NotReadyError."""
        self._prepare_folder()
        await first_done(self._failure, self._start())

    async def keep(self) -> None:
        """Restart children that die, until cancelled. Raises NotReadyError if a child dies too often."""
        await first_done(self._failure)

    async def stop(self) -> None:
        """Stop the stage workers first, since they hand back sessions to the others, and Kafka last. Takes 24 s at most."""
        self._failure.cancel()  # a child that can't be started again while we stop is no failure
        (self._data / ENV_FILE).unlink(missing_ok=True)
        await self._doors.aclose()
        stages = [child for child in self._children if child.name == "stages"]
        others = [child for child in self._children if child.name != "stages"]
        await asyncio.gather(*(child.stop(STAGES_STOP_S) for child in stages))
        await asyncio.gather(*(child.stop(OTHERS_STOP_S) for child in others))
        await self._forks.stop()
        if self._kafka is not None:
            await self._kafka.stop(KAFKA_STOP_S)
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for held in self._held:
            held.close()

    def _prepare_folder(self) -> None:
        (self._data / "run").mkdir(parents=True, exist_ok=True)
        keys.ensure_keys_file(self._user_settings.keys_path)
        webhook_signing.ensure_secret_file(self._user_settings.webhook_secret_path)
        token = self._data / "control.token"
        private_files.replace(token, self._control_token)
        self.addresses |= {
            "POLAR_DATA": str(self._data),
            "POLAR_NAMESPACE": self._user_settings.namespace,
            "POLAR_CONTROL_TOKEN_FILE": str(token),
            "POLAR_BLOBS": _shared(self._user_settings.blobs_address),
            "POLAR_LAKE": _shared(self._user_settings.lake_address),
            "POLAR_KEYS_FILE": str(self._user_settings.keys_path.absolute()),
            "POLAR_WEBHOOK_SECRET_FILE": str(self._user_settings.webhook_secret_path.absolute()),
        }

    async def _start(self) -> None:
        _, upstream, _ = await asyncio.gather(self._forks.open(), self._start_engine(), self._start_kafka())
        self.engine = upstream
        self._launch_proxy(upstream)
        self._launch_worker("deciding", DECIDING)
        self._launch_worker("lake", LAKE)
        self._launch_worker("stages", STAGES)
        ready_url = self.addresses["POLAR_CONTROL_URL"] + "/readyz"
        await asyncio.gather(
            readiness.http(ready_url, "the proxy", deadline_s=START_S),
            readiness.heartbeats(self.settings(), [*DECIDING, *STAGES, *LAKE], deadline_s=START_S),
        )
        for child in self._children:
            child.has_answered = True
        if self._options.metrics_port is not None:
            # Imported only here: aiohttp takes some 15 MB.
            from consumers.metrics_http import serve_metrics
            from polar.embedded.parts_metrics import PartsMetrics

            merged = PartsMetrics(self._metrics_urls, self._control_token, on_demand=["page"])
            serving = serve_metrics(merged, "127.0.0.1", self._options.metrics_port)
            self.metrics_url = await self._doors.enter_async_context(serving)

    async def _start_kafka(self) -> None:
        if self._user_settings.kafka is None:
            users = logins.ensure(self._data)
            security = Security("SASL_PLAINTEXT", users=users, authorizer=True)
            self._operator = {
                "kafka_sasl_username": NODE_USER,
                "kafka_sasl_password": security.node_password,
                "kafka_sasl_password_file": None,
            }
            self._kafka = Kafka(self._data, announce=self._announce, security=security, meter=self._meter)
            await self._kafka.start()
            self._keep(self._kafka.keep(), "keep-kafka")
            self.addresses |= {
                "POLAR_KAFKA": self._kafka.bootstrap,
                **logins.variables(self._data),
                "POLAR_REPLICATION": "1",
                "POLAR_MIN_INSYNC": "1",
            }
            await rights.apply(self.settings(), logins.rights(self._user_settings.namespace))
        else:
            self.addresses |= {
                "POLAR_KAFKA": self._user_settings.kafka,
                "POLAR_REPLICATION": str(self._user_settings.replication),
                "POLAR_MIN_INSYNC": str(self._user_settings.min_insync),
            }
        topics = [*catalogue.FIXED, *catalogue.of_pool(catalogue.DEFAULT_POOL)]
        settings = self.settings()
        await admin.apply(settings, topics, embedded=settings.replication == 1)

    async def _start_engine(self) -> ServedModel:
        if self._options.engine is not None:
            return self._options.engine
        scripts = [argument for path in self._options.scripts for argument in ("--scripts", str(path.absolute()))]
        returns = [argument for value in sorted(self._options.capture) for argument in ("--return", value)]
        port = self._reserved(0)
        arguments = ["polar.scripted", *scripts, *returns, "--record", str(self._data / "engine-record.jsonl")]
        child = self._launch("engine", [*arguments, "--port", str(port)])
        url = _loopback(port)
        self._metrics_urls["engine"] = f"{url}/metrics"
        await readiness.http(f"{url}/health", "the scripted engine", deadline_s=START_S)
        child.has_answered = True
        return await asyncio.to_thread(probe.find_model, url, None)

    def _launch_proxy(self, upstream: ServedModel) -> None:
        port, control_port = self._reserved(self._options.port), self._reserved(0)
        arguments = ["polar.cli", "proxy", "--engine", upstream.url, "--model", upstream.model]
        arguments += ["--mode", self._options.mode, "--port", str(port), "--control-port", str(control_port)]
        arguments += [argument for value in sorted(self._options.capture) for argument in ("--capture", value)]
        if upstream.api_key is not None:
            arguments += ["--engine-key-file", str(upstream.api_key.file)]
        self._launch("proxy", arguments)
        self.addresses |= {"POLAR_PROXY_URL": _loopback(port), "POLAR_CONTROL_URL": _loopback(control_port)}
        self._metrics_urls["proxy"] = f"{_loopback(control_port)}/metrics"
        self._listen_for_page()
        write_env_file(self._data / ENV_FILE, self.addresses)

    def _launch_worker(self, name: str, roles: Sequence[str]) -> None:
        self._launch(name, ["polar.cli", "worker", *roles, *self._metrics_options(name)])

    def _metrics_options(self, name: str) -> list[str]:
        """The options with which a part tells its metrics, if they are wanted."""
        if self._options.metrics_port is None:
            return []
        port = self._reserved(0)
        self._metrics_urls[name] = f"{_loopback(port)}/metrics"
        return ["--metrics-port", str(port)]

    def _reserved(self, port: int) -> int:
        """The port; or if it is 0, a free one, which no other program gets as long as we hold it."""
        if port != 0:
            return port
        held = bound(Binding("127.0.0.1", 0))
        self._held.append(held)
        return int(held.getsockname()[1])

    def _listen_for_page(self) -> None:
        """Listen for the page's first visitor, who starts its process: until then it costs nothing."""
        remembered = self._data / "run" / "page.port"
        listener = page_listener(self._options.page_port, remembered)
        self._held.append(listener)
        arguments = ["polar.cli", "page", "--listener", str(listener.fileno()), *self._metrics_options("page")]
        child = self._child("page", arguments, listener=listener)
        child.has_answered = True
        self._children.append(child)
        self._keep(self._keep_page(child), "keep-page")
        self.addresses["POLAR_PAGE_URL"] = url(listener)

    async def _keep_page(self, child: ChildProcess) -> None:
        """Sessions go on without the page."""
        try:
            await child.keep()
        except NotReadyError as error:
            self._announce(f"the page is off: {error}")

    def _launch(self, name: str, arguments: list[str]) -> ChildProcess:
        child = self._child(name, arguments, forks=self._forks)
        self._children.append(child)
        self._keep(child.keep(), f"keep-{name}")
        return child

    def _child(
        self, name: str, arguments: list[str], *, listener: socket.socket | None = None, forks: Forks | None = None
    ) -> ChildProcess:
        trust = {"POLAR_TRUST_TASKS": str(self._user_settings.trust_tasks).lower()}
        return ChildProcess(
            name,
            arguments,
            environment=os.environ | self.addresses | trust | {"PYTHONUNBUFFERED": "1"},
            log=self._data / "logs" / f"{name}.log",
            lock=self._lock,
            announce=self._announce,
            listener=listener,
            forks=forks,
        )

    def _keep(self, keeper: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(keeper, name=name)
        task.add_done_callback(self._kept)
        self._keepers.append(task)

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """Record the failure of a keeper that gave up."""
        if not keeper.cancelled() and (error := keeper.exception()) and not self._failure.done():
            self._failure.set_exception(error)

    def settings(self) -> Settings:
        """The settings of the child processes, with this process's login."""
        found = {name.removeprefix("POLAR_").lower(): value for name, value in self.addresses.items()}
        return Settings(**(self._user_settings.model_dump() | found | self._operator))


def page_listener(port: int, remembered: Path) -> socket.socket:
    """A listening socket for the page. Port 0: that of the last time, so that an open page finds it again, or any free port.

    Raises NotReadyError if another program uses the port.
    """
    if port == 0:
        text = remembered.read_text() if remembered.exists() else ""
        if text.isdecimal() and 0 < int(text) < 65536:
            with suppress(OSError):
                return _listening(int(text))
    try:
        listener = _listening(port)
    except OSError as error:
        raise NotReadyError(
            f"the page can't listen on 127.0.0.1:{port}: {error}; choose another port (--page-port)"
        ) from None
    remembered.write_text(str(listener.getsockname()[1]))
    return listener


def _listening(port: int) -> socket.socket:
    listener = bound(Binding("127.0.0.1", port))
    listener.listen(128)
    return listener


def _shared(place: Path | S3Address) -> str:
    """A place as all processes can name it, whatever their current folder."""
    return str(place.absolute() if isinstance(place, Path) else place)


def _loopback(port: int) -> str:
    return f"http://127.0.0.1:{port}"
