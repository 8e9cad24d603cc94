"""A whole system with a process for each role, on its own broker, so that a test can kill any of them.

The engine is the scripted one: a stand-in for vLLM with a record of all that it sampled. All else is the real thing, started by its
command line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from polar.embedded import Broker
from polar.embedded.properties import NODE_USER, Security
from polar.scripted.record import Sampled
from tests.kafka_cluster import Cluster
from tests.uploading import actions_of
from tests.waiting import eventually
from topics import completions, trajectories, workers
from topics.completions import CallRecord
from topics.contract import catalogue
from topics.environment import blob_store
from topics.environment.keys import ensure_keys_file
from topics.environment.settings import Settings, write_env_file
from topics.environment.webhook_signing import ensure_secret_file
from topics.log import admin, logins, rights
from topics.log.follow import Follower, Since
from topics.log.owner import read_back
from topics.types.trajectory import GroupFinished, Trajectory

ROLES = ("fanout", "coordinator", "builder", "init", "run", "evaluate")
AGENT = Path(__file__).with_name("agent.py")
READY_S = 180.0
"""Two seconds on an idle machine; a proxy waits for brokers that were killed, and those for each other."""
STOP_S = 45.0
"""A second or two on an idle machine."""
STACKS_S = 2.0
"""For a process to write its stacks."""
LOOK_S = 0.03
"""Between two looks for logs of new runs."""
ANSWER = '{"session_id": '
"""How a line of a log begins by which a harness reports an answer."""
LOG_SHOWN = 4000
"""Characters of a log that a failure shows."""
NOT_READY = 3
"""A process's exit code where something that it needs isn't there."""


class Leftover(NamedTuple):
    """A process of a harness that still lives."""

    pid: int
    session_id: str | None
    command: list[str]


@dataclass
class Fleet:
    """Processes by name: `<role>-<n>`, `proxy`, `proxy-<n>`, `engine`. Harnesses ask `proxy`; others join it."""

    data: Path
    kafka: Broker | Cluster
    settings: Settings
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    proxy_url: str = ""
    engine_url: str = ""
    mode: str = "chat"
    """How proxies ask the engine."""
    blobs: str | None = None
    """The blob store; None: DATA/blobs."""
    login: Mapping[str, str] = field(default_factory=dict)
    """The variables of the person's login, on a Kafka with logins."""
    variables: Callable[[str], Mapping[str, str]] = lambda _: {}
    """Variables of the process with this name."""

    @property
    def mark(self) -> dict[str, str]:
        """The variable by which `leftovers` knows the harnesses of this system."""
        return {"FLEET": str(self.data)}

    @property
    def agent_logs(self) -> Path:
        """A link to the log of every run, those of lost attempts included. It stays when the sandbox goes."""
        return self.data / "agent-logs"

    async def keep_logs(self) -> None:
        """Fill `agent_logs` until cancelled.

        A run takes longer than the time between two looks: its program has to start, and its end to be evaluated.
        """
        new = self.agent_logs / "new"
        known: set[int] = set()
        while True:
            for log in [log for folder in self.runtimes() for log in folder.glob("logs/agent.log")]:
                with suppress(FileNotFoundError):  # the sandbox is gone
                    if log.stat().st_ino not in known:
                        new.hardlink_to(log)
                        inode = new.stat().st_ino
                        known.add(inode)
                        new.rename(self.agent_logs / f"{inode}.log")
            await asyncio.sleep(LOOK_S)

    def _environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("POLAR_")}

    async def spawn(self, name: str, *arguments: str) -> None:
        """Start a process, its output in DATA/logs/<name>.log."""
        log = self.data / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as file:
            self.processes[name] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *arguments,
                stdout=file,
                stderr=file,
                env={**self._environment(), **self.variables(name)},
                start_new_session=True,
            )

    async def start(self, name: str) -> None:
        """A process of the role before the dash."""
        role = name.partition("-")[0]
        match role:
            case "engine":
                await self.start_engine()
            case "proxy":
                await self.start_proxy(name)
            case _:
                await self.spawn(name, "polar.cli", "worker", role, "--data", str(self.data))

    async def start_engine(self, *options: str) -> None:
        """On the port that it had before, if any."""
        ready = self.data / "engine.ready"
        ready.unlink(missing_ok=True)
        await self.spawn(
            "engine", "polar.scripted", "--port", self.engine_url.rpartition(":")[2] or "0", "--ready-file", str(ready),
            "--record", str(self.record), *options,
        )  # fmt: skip
        self.engine_url = (await self._ready("engine"))["url"]

    async def start_proxy(self, name: str = "proxy") -> None:
        """The one that harnesses ask on the port that it had before, if any."""
        port = (self.proxy_url.rpartition(":")[2] or "0") if name == "proxy" else "0"
        ready = self.data / f"{name}.ready"
        ready.unlink(missing_ok=True)
        arguments = (
            "polar.cli", "proxy", "--data", str(self.data), "--engine", self.engine_url, "--mode", self.mode, "--port", port,
            "--control-port", "0", "--ready-file", str(ready),
        )  # fmt: skip
        await self.spawn(name, *arguments)
        url = (await self._ready(name, arguments))["url"]
        if name == "proxy":
            self.proxy_url = url

    @asynccontextmanager
    async def _deadline(self, seconds: float, what: str, name: str) -> AsyncIterator[None]:
        """Past it an AssertionError shows the end of the process's log."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            log = (self.data / "logs" / f"{name}.log").read_text(errors="replace")[-LOG_SHOWN:]
            raise AssertionError(f"{what} within {seconds:.0f} s; its log:\n{log}") from None

    async def _ready(self, name: str, again: Sequence[str] = ()) -> dict[str, str]:
        """What the process wrote when it was ready. `again` starts it anew, as any supervisor does, where the engine or Kafka hangs."""
        file = self.data / f"{name}.ready"
        async with self._deadline(READY_S, f"{name} wasn't ready", name):
            while not file.exists():
                if again and self.processes[name].returncode == NOT_READY:
                    await self.spawn(name, *again)
                assert self.processes[name].returncode is None, (self.data / "logs" / f"{name}.log").read_text()
                await asyncio.sleep(0.05)
        found: dict[str, str] = json.loads(file.read_text())
        return found

    @property
    def record(self) -> Path:
        return self.data / "engine-record.jsonl"

    def sampled(self, session_id: str | None = None) -> list[Sampled]:
        """All that the engine sampled, in order; it may be writing the last line."""
        whole, _, _ = self.record.read_bytes().rpartition(b"\n")
        calls = [msgspec.json.decode(line, type=Sampled) for line in whole.splitlines()]
        return [call for call in calls if session_id is None or call.session_id == session_id]

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    async def kill(self, name: str) -> None:
        """kill -9, and wait for its end."""
        self.processes[name].kill()
        await self.processes[name].wait()

    async def end(self, name: str) -> None:
        """SIGTERM, and wait for a clean end."""
        self.processes[name].terminate()
        async with self._deadline(STOP_S, f"{name} didn't end", name):
            code = await self.processes[name].wait()
        # By the signal itself where it had only just been started.
        assert code in (0, -signal.SIGTERM), (name, code)

    @property
    def brokers(self) -> list[str]:
        """Names that `broker_down` and `broker_up` take."""
        return [f"broker-{node}" for node in self.kafka.nodes] if isinstance(self.kafka, Cluster) else ["broker-1"]

    @property
    def broker(self) -> Broker:
        """The only one."""
        assert isinstance(self.kafka, Broker), "this Kafka has several"
        return self.kafka

    def _broker(self, name: str) -> Broker:
        return self.kafka.broker(int(name.rpartition("-")[2])) if isinstance(self.kafka, Cluster) else self.kafka

    async def broker_down(self, name: str, *, clean: bool) -> None:
        """Stopped, or killed with -9."""
        await asyncio.to_thread(self._broker(name).stop if clean else self._broker(name).kill)

    async def broker_up(self, name: str) -> None:
        """Returns when it serves: most of the others must run, or start at the same time."""
        await asyncio.to_thread(self._broker(name).start)

    def write_env(self) -> None:
        """DATA/polar.env, as `polar up` writes it, so that `--data` finds this system."""
        write_env_file(
            self.data / "polar.env",
            {
                "POLAR_KAFKA": self.kafka.bootstrap,
                "POLAR_NAMESPACE": self.settings.namespace,
                "POLAR_PROXY_URL": self.proxy_url,
                "POLAR_REPLICATION": str(self.settings.replication),
                "POLAR_MIN_INSYNC": str(self.settings.min_insync),
                **({} if self.blobs is None else {"POLAR_BLOBS": self.blobs}),
                **self.login,
            },
        )

    async def polar(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        """Run a command of the CLI; exit code, stdout, stderr. Cancelled, it says what the command was doing."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "polar.cli", *arguments, "--data", str(self.data), env=self._environment(),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = await process.communicate(stdin.encode())
        except asyncio.CancelledError as cancelled:
            if process.returncode is None:
                process.send_signal(signal.SIGUSR1)
                await asyncio.sleep(STACKS_S)
                process.kill()
            _, err = await process.communicate()
            cancelled.add_note(
                f"polar {' '.join(arguments)}: exit code {process.returncode}; on stderr: {err.decode()}"
            )
            raise
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    def task(self, task_id: str, turns: int, samples: int, *, pause_s: float = 0, **more: Any) -> dict[str, Any]:
        """A TaskRequest whose harness makes `turns` growing calls in a cell, and writes what it saw to its log."""
        command = f"{sys.executable} {AGENT.name}"
        env = self.mark | {"TURNS": str(turns), "PAUSE_S": str(pause_s)}
        agent = {"harness": "shell", "custom_shell": {"command": command}, "env": env}
        # Stored here, since some tests write the task to Kafka themselves.
        upload = {"type": "upload_file", "source": str(AGENT), "target": AGENT.name}
        blobs = blob_store.of(self.settings)
        runtime = {
            "backend": "cell",
            "prepare": [action.model_dump(exclude_none=True) for action in actions_of([upload], blobs)],
        }
        return {
            "task_id": task_id,
            "instruction": "talk on",
            "num_samples": samples,
            "agent": agent,
            "runtime": runtime,
            **more,
        }

    def answered(self) -> list[dict[str, str]]:
        """All that harnesses saw answered: `session_id`, `call_id` and maybe more. A line without its end was cut by a kill."""
        lines = [line for log in self.agent_logs.glob("*.log") for line in log.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.startswith(ANSWER) and line.endswith("\n")]

    async def calls(self) -> list[CallRecord]:
        """All that `polar.completions` holds, partition by partition."""
        return await self._read(completions.TOPIC.full_name(self.settings.namespace), completions.CODEC.decode)

    async def outputs(self) -> list[Trajectory | GroupFinished]:
        """All that `polar.trajectories` holds, committed."""
        return await self._read(trajectories.TOPIC.full_name(self.settings.namespace), trajectories.CODEC.decode)

    async def _read(self, topic: str, decode: Any) -> list[Any]:
        found: list[Any] = []
        for partition in range(completions.TOPIC.partition_count(isinstance(self.kafka, Broker))):
            found += [decode(record.value) async for record in read_back(self.settings, topic, partition)]
        return found

    async def worker_id(self, name: str) -> str:
        """The id under which a stage worker beats, once its group has given it partitions."""
        found: list[str] = []

        def on_sign(sign: workers.Sign, _: object) -> None:
            if isinstance(sign, workers.Heartbeat) and sign.pid == self.processes[name].pid:
                found.extend([sign.worker_id] if any(slots.partitions for slots in sign.stages) else [])

        follower = Follower(self.settings, workers.TOPIC, on_sign, since=Since.BEGINNING)
        await follower.start()
        try:
            return (await eventually(lambda: found, READY_S))[0]
        finally:
            await follower.stop()

    async def dead_letters(self) -> int:
        listed = await admin.listing(self.settings)
        return next(each.records for each in listed if each.name.endswith("dead-letters"))

    def leftovers(self) -> list[Leftover]:
        """Processes of harnesses that still live, by their mark."""
        found: list[Leftover] = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                if self.mark.items() <= environment.items():
                    found.append(Leftover(process.pid, environment.get("POLAR_SESSION_ID"), process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def runtimes(self) -> list[Path]:
        """Sandboxes that still lie there."""
        return list((self.data / "runtimes" / self.settings.namespace).glob("*/*"))

    async def boot(self, names: Sequence[str], *engine_options: str) -> None:
        """Make the topics, then start engine, proxy and these workers, in order."""
        topics = [*catalogue.FIXED, *catalogue.of_pool(catalogue.DEFAULT_POOL)]
        await admin.apply(self.settings, topics, embedded=isinstance(self.kafka, Broker), reach_s=READY_S)
        self.write_env()
        await self.start_engine(*engine_options)
        await self.start("proxy")
        self.write_env()
        for name in names:
            await self.start(name)

    async def stop(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        await asyncio.to_thread(self.kafka.stop)


@asynccontextmanager
async def fleet(
    data: Path,
    names: Sequence[str],
    *engine_options: str,
    brokers: int = 1,
    mode: str = "chat",
    secured: bool = False,
    variables: Callable[[str], Mapping[str, str]] = lambda _: {},
    blobs: str | None = None,
) -> AsyncIterator[Fleet]:
    """A system with these workers, started in order, on one broker or several; all of it is stopped at the end.

    `secured`: the one broker has the logins and ACLs of `polar up`; `settings` are its super user's.
    """
    data.mkdir(exist_ok=True)
    ensure_keys_file(data / "keys.json")
    ensure_secret_file(data / "webhook.secret")
    security = Security("SASL_PLAINTEXT", users=logins.ensure(data), authorizer=True) if secured else None
    kafka = Broker(data, announce=print, security=security) if brokers == 1 else Cluster(data, brokers, announce=print)
    await asyncio.to_thread(kafka.start)
    copies, in_sync = (1, 1) if brokers == 1 else (3, 2)
    settings = Settings(
        kafka=kafka.bootstrap, data=data, namespace="polar", blobs=blobs, replication=copies, min_insync=in_sync
    )
    made = Fleet(data, kafka, settings, mode=mode, variables=variables, blobs=blobs)
    if security is not None:
        user = {"kafka_sasl_username": NODE_USER, "kafka_sasl_password": security.node_password}
        made.settings = settings.model_copy(update={"kafka_security_protocol": security.protocol, **user})
        made.login = logins.variables(data)
        await rights.apply(made.settings, logins.rights(settings.namespace))
    made.agent_logs.mkdir()
    keeping = asyncio.create_task(made.keep_logs(), name="agent-logs")
    try:
        await made.boot(names, *engine_options)
        yield made
    finally:
        await made.stop()
        keeping.cancel()
        await asyncio.wait({keeping})
