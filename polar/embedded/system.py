"""`polar up`: Kafka, a proxy, the deciding consumers, the stage workers and, where no engine is given, the scripted one.

Invariant: everything that runs hangs on this process and holds the data folder's lock; a part that dies comes back on the port it had.
DIR/polar.env exists from when the addresses are known until the stop, and tells every other command where this system is.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from polar.embedded import readiness
from polar.embedded.child_process import Part
from polar.embedded.distribution import Meter
from polar.embedded.kafka import Kafka
from proxy.engines import probe
from proxy.engines.probe import ServedModel
from topics.contract import catalogue
from topics.environment import keys, private_files, webhook_signing
from topics.environment.settings import ENV_FILE, Settings, write_env_file
from topics.log import admin
from topics.waiting.first_done import first_done

START_S = 90.0
"""For one part to answer; a second or two where the machine is idle."""
STAGES_STOP_S = 8.0
"""The stage workers kill their harnesses and hand their sessions back."""
OTHERS_STOP_S = 10.0
KAFKA_STOP_S = 6.0
DECIDING = ("fanout", "coordinator", "builder")
STAGES = ("init", "run", "evaluate")
LAKE = ("analytics", "webhooks")


@dataclass(frozen=True)
class Options:
    """What `polar up` was asked for."""

    engine: ServedModel | None = None
    """None: the scripted engine."""
    mode: str = "chat"
    """How the proxy asks it."""
    scripts: Sequence[Path] = ()
    """The scripted engine's."""
    port: int = 0
    """The proxy's; 0: any free one."""


class System:
    """One data folder's processes. `start`, then `keep` until it is time, then `stop`, whatever came before."""

    def __init__(
        self,
        settings: Settings,
        options: Options,
        *,
        lock: int,
        announce: Callable[[str], None],
        meter: Meter | None = None,
    ) -> None:
        """`settings.kafka` set: that Kafka is used. `lock`: the folder's (`lock.claim`). `meter`: told of Kafka's download.

        Needs a running loop.
        """
        self.addresses: dict[str, str] = {}
        """What DIR/polar.env holds, as far as it is known."""
        self.engine = options.engine
        """The one in use, once started."""
        self._given = settings
        self._data = settings.data.absolute()
        self._options = options
        self._lock = lock
        self._announce = announce
        self._meter = meter
        self._kafka: Kafka | None = None
        self._parts: list[Part] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_scripted(self) -> bool:
        return self._options.engine is None

    async def start(self) -> None:
        """Start everything and return when everything answers. Raises NotReady."""
        self._prepare_folder()
        await first_done(self._failure, self._start())

    async def keep(self) -> None:
        """Mend what dies, until cancelled. Raises NotReady where mending doesn't help."""
        await first_done(self._failure)

    async def stop(self) -> None:
        """Stop what was started: workers first, who need the others to hand back their sessions, Kafka last. ~20 s at worst."""
        (self._data / ENV_FILE).unlink(missing_ok=True)
        stages = [part for part in self._parts if part.name == "stages"]
        others = [part for part in self._parts if part.name != "stages"]
        await asyncio.gather(*(part.stop(STAGES_STOP_S) for part in stages))
        await asyncio.gather(*(part.stop(OTHERS_STOP_S) for part in others))
        if self._kafka is not None:
            await self._kafka.stop(KAFKA_STOP_S)
        await asyncio.gather(*self._keepers, return_exceptions=True)

    def _prepare_folder(self) -> None:
        (self._data / "run").mkdir(parents=True, exist_ok=True)
        keys.ensure_keys_file(self._given.keys_path)
        webhook_signing.ensure_secret_file(self._given.webhook_secret_path)
        token = self._data / "control.token"
        private_files.replace(token, secrets.token_urlsafe(32))
        self.addresses |= {
            "POLAR_DATA": str(self._data),
            "POLAR_NAMESPACE": self._given.namespace,
            "POLAR_CONTROL_TOKEN_FILE": str(token),
            "POLAR_BLOBS": str(self._given.blobs_folder.absolute()),
            "POLAR_LAKE": str(self._given.lake_folder.parent.absolute()),
            "POLAR_KEYS_FILE": str(self._given.keys_path.absolute()),
            "POLAR_WEBHOOK_SECRET_FILE": str(self._given.webhook_secret_path.absolute()),
        }

    async def _start(self) -> None:
        upstream, _ = await asyncio.gather(self._start_engine(), self._start_kafka())
        self.engine = upstream
        deciding = self._launch("deciding", ["polar.cli", "worker", *DECIDING])
        lake = self._launch("lake", ["polar.cli", "worker", *LAKE])
        await self._start_proxy(upstream)
        stages = self._launch("stages", ["polar.cli", "worker", *STAGES])
        ready_url = self.addresses["POLAR_CONTROL_URL"] + "/readyz"
        await asyncio.gather(
            readiness.http(ready_url, "the proxy", deadline_s=START_S),
            readiness.heartbeats(self._settings(), [*DECIDING, *STAGES, *LAKE], deadline_s=START_S),
        )
        deciding.has_answered = stages.has_answered = lake.has_answered = True

    async def _start_kafka(self) -> None:
        if self._given.kafka is None:
            self._kafka = Kafka(self._data, announce=self._announce, meter=self._meter)
            await self._kafka.start()
            self._keep(self._kafka.keep(), "keep-kafka")
            self.addresses |= {
                "POLAR_KAFKA": self._kafka.bootstrap,
                "POLAR_KAFKA_SECURITY_PROTOCOL": "PLAINTEXT",
                "POLAR_REPLICATION": "1",
                "POLAR_MIN_INSYNC": "1",
            }
        else:
            self.addresses |= {
                "POLAR_KAFKA": self._given.kafka,
                "POLAR_REPLICATION": str(self._given.replication),
                "POLAR_MIN_INSYNC": str(self._given.min_insync),
            }
        topics = [*catalogue.FIXED, *catalogue.of_pool(catalogue.DEFAULT_POOL)]
        settings = self._settings()
        await admin.apply(settings, topics, embedded=settings.replication == 1)

    async def _start_engine(self) -> ServedModel:
        if self._options.engine is not None:
            return self._options.engine
        scripts = [argument for path in self._options.scripts for argument in ("--scripts", str(path.absolute()))]
        arguments = ["polar.scripted", *scripts, "--record", str(self._data / "engine-record.jsonl")]
        answer = await self._launch_listening("engine", arguments, {"--port": 0})
        return await asyncio.to_thread(probe.find_model, answer["url"], None)

    async def _start_proxy(self, upstream: ServedModel) -> None:
        arguments = ["polar.cli", "proxy", "--engine", upstream.url, "--model", upstream.model]
        arguments += ["--mode", self._options.mode]
        answer = await self._launch_listening("proxy", arguments, {"--port": self._options.port, "--control-port": 0})
        self.addresses |= {"POLAR_PROXY_URL": answer["url"], "POLAR_CONTROL_URL": answer["control_url"]}
        write_env_file(self._data / ENV_FILE, self.addresses)

    async def _launch_listening(self, name: str, arguments: list[str], ports: dict[str, int]) -> dict[str, str]:
        """Start a part that writes where it listens to a ready file, and read that; from then on it comes back on those ports.

        The file is JSON and holds an URL for each flag of `ports` (`url` for `--port`, `control_url` for `--control-port`).
        Raises NotReady.
        """
        ready_file = self._data / "run" / f"{name}.json"
        ready_file.unlink(missing_ok=True)
        arguments = [*arguments, "--ready-file", str(ready_file)]
        part = self._launch(name, [*arguments, *_flags(ports)])
        answer: dict[str, str] = json.loads(await readiness.file(ready_file, name, deadline_s=START_S))
        part.arguments = [*arguments, *_flags({flag: _port(answer, flag) for flag in ports})]
        part.has_answered = True
        return answer

    def _launch(self, name: str, arguments: list[str]) -> Part:
        part = Part(
            name,
            arguments,
            environment=os.environ | self.addresses | {"PYTHONUNBUFFERED": "1"},
            log=self._data / "logs" / f"{name}.log",
            lock=self._lock,
            announce=self._announce,
        )
        self._parts.append(part)
        self._keep(part.keep(), f"keep-{name}")
        return part

    def _keep(self, keeper: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(keeper, name=name)
        task.add_done_callback(self._kept)
        self._keepers.append(task)

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """A keeper that ends has either been stopped or given up."""
        if not keeper.cancelled() and (error := keeper.exception()) and not self._failure.done():
            self._failure.set_exception(error)

    def _settings(self) -> Settings:
        """The settings that the parts have."""
        found = {name.removeprefix("POLAR_").lower(): value for name, value in self.addresses.items()}
        return Settings(**(self._given.model_dump() | found))


def _flags(ports: dict[str, int]) -> list[str]:
    return [argument for flag, port in ports.items() for argument in (flag, str(port))]


def _port(answer: dict[str, str], flag: str) -> int:
    url = answer[flag.removeprefix("--").removesuffix("port").replace("-", "_") + "url"]
    port = urlsplit(url).port
    assert port is not None, f"a part that listens says its port: {url}"
    return port
