"""Attacks by a session's programs on the rest of the system. As a process each succeeds, in a cell it fails, and under Landlock as well.

The success as a process shows that an attack is one: an attack on a wrong address would fail in a cell as well. Proxy and Kafka are real,
the engine is the scripted one. Servers of this module stand in for the internet and a name server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumers.runtimes.base import Exec, Labels, ModelAccess, Runtime, RuntimeBackend, SandboxError
from consumers.runtimes.cell.ways_out import ALLOWLIST_PORT
from polar.scripted.engine import Engine as ScriptedEngine
from proxy.app import Proxy
from tests.consumers.runtimes.conftest import KINDS, Living, workspace_of
from tests.proxy.conftest import Bench, bench, engine_url, proxy, scripted
from tests.serving import serving
from tests.waiting import eventually
from topics import events, trajectories
from topics.contract.codec import encode
from topics.environment import registry
from topics.environment.settings import Settings
from topics.events import Evaluated
from topics.log import admin
from topics.log.owner import read_back
from topics.types.runtime import Network, RuntimeSpec
from topics.types.session import Status
from topics.types.trajectory import Trajectory

__all__ = ["bench", "engine_url", "proxy", "scripted"]  # fixtures
pytestmark = pytest.mark.contract

REWARD = encode(Evaluated("forged", "t.0", 1, "c1", reward=1.0))
TRAJECTORY = encode(Trajectory("t.0", "t", 0, 1, 1, Status.COMPLETED, "prefix_merging", "shell", reward=1.0))
WRITE_TO_KAFKA = f"""{sys.executable} -c '
import asyncio, os
from aiokafka import AIOKafkaProducer

async def main():
    producer = AIOKafkaProducer(bootstrap_servers=os.environ["KAFKA"])
    await producer.start()
    await producer.send_and_wait(os.environ["TOPIC"], bytes.fromhex(os.environ["VALUE"]), key=b"t.0")
    await producer.stop()

asyncio.run(main())'
"""
CALL = """curl -sS --fail -H "Authorization: Bearer $OPENAI_API_KEY" -H 'Content-Type: application/json' \\
  -d '{"model": "polar-scripted", "messages": [{"role": "user", "content": "hi"}]}' """
ATTACKS = {
    "forged reward": f"export TOPIC=$EVENTS VALUE={REWARD.hex()}; {WRITE_TO_KAFKA}",
    "forged trajectory": f"export TOPIC=$TRAJECTORIES VALUE={TRAJECTORY.hex()}; {WRITE_TO_KAFKA}",
    "engine": f"{CALL} $ENGINE/v1/chat/completions | grep chatcmpl >/dev/null",
    "control port": "curl -sS --fail $CONTROL/metrics | grep polar_ >/dev/null",
    "fix from the internet": '[ "$(curl -sS --fail $INTERNET/fix.patch)" = "the fix" ]',
    "name server": 'exec 3<>/dev/udp/127.0.0.1/$NAME_SERVER; echo query >&3; [ "$(timeout 5 head -n1 <&3)" = answer ]',
    "another session's port": '[ "$(cat < /dev/tcp/127.0.0.1/$NEIGHBOUR)" = "the secret" ]',
}
"""Commands that succeed if their target answers as it does to its own clients."""
ANSWERED = f"{CALL} $OPENAI_BASE_URL/chat/completions | grep chatcmpl >/dev/null && echo the model answered\n"
LISTEN = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    with open("port.part", "w") as file: file.write(str(server.getsockname()[1]))
    __import__("os").rename("port.part", "port")
    while True:
        client, _ = server.accept()
        with client: client.sendall(b"the secret")
"""


class Outside:
    """What stands outside of the cells, with addresses for a session's environment. `answered`: servers of this module that did."""

    def __init__(self, settings: Settings, scripted: ScriptedEngine) -> None:
        self.environment: dict[str, str] = {}
        self.answered: set[str] = set()
        self._settings = settings
        self._scripted = scripted

    async def reached(self) -> set[str]:
        """The targets of attacks that show that they were reached."""
        found = set(self.answered)
        if any(call.session_id is None for call in self._scripted.record.calls()):
            found.add("engine")  # the proxy names the session of each of its calls
        for name, topic, value in (
            ("forged reward", events.TOPIC, REWARD),
            ("forged trajectory", trajectories.TOPIC, TRAJECTORY),
        ):
            for partition in range(topic.embedded_partitions):
                records = read_back(self._settings, topic.full_name(self._settings.namespace), partition)
                if any([record.value == value async for record in records]):
                    found.add(name)
        return found


def outward_address() -> str:
    """This machine's address towards the internet, where it has one. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.fixture
async def outside(bench: Bench, proxy: Proxy, engine_url: str, scripted: ScriptedEngine) -> AsyncIterator[Outside]:
    await admin.apply(bench.settings, [trajectories.TOPIC], embedded=True)
    made = Outside(bench.settings, scripted)

    async def serve_fix(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.answered.add("fix from the internet")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nthe fix")
        writer.close()

    internet = await asyncio.start_server(serve_fix, outward_address(), 0)
    name_server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    name_server.setblocking(False)
    name_server.bind(("127.0.0.1", 0))

    async def serve_names() -> None:
        loop = asyncio.get_running_loop()
        while True:
            _, address = await loop.sock_recvfrom(name_server, 512)
            made.answered.add("name server")
            await loop.sock_sendto(name_server, b"answer\n", address)

    serving_names = asyncio.create_task(serve_names(), name="name-server")
    host, port = internet.sockets[0].getsockname()
    made.environment = {
        "KAFKA": bench.settings.kafka or "",
        "EVENTS": events.TOPIC.full_name(bench.settings.namespace),
        "TRAJECTORIES": trajectories.TOPIC.full_name(bench.settings.namespace),
        "ENGINE": engine_url,
        "CONTROL": proxy.control_url,
        "INTERNET": f"http://{host}:{port}",
        "NAME_SERVER": str(name_server.getsockname()[1]),
    }
    yield made
    serving_names.cancel()
    await asyncio.wait({serving_names})
    name_server.close()
    internet.close()


@asynccontextmanager
async def running(runtime: Runtime, what: Exec, sign: str) -> AsyncIterator[None]:
    """While the context lasts, the program runs, and has written the file `sign`."""
    program = asyncio.create_task(runtime.exec(what), name="program")
    try:
        await eventually((workspace_of(runtime) / sign).exists)
        yield
    finally:
        program.cancel()
        await asyncio.wait({program})


def backend_of(kind: str, folder: Path) -> RuntimeBackend:
    made: RuntimeBackend = registry.load(registry.Kind.RUNTIME, kind)(folder / "runtimes")
    return made


@pytest.mark.parametrize(
    ("kind", "network", "is_agent"),
    [
        pytest.param("process", None, True, id="process"),
        pytest.param("cell", Network.HOST, True, id="trusted cell"),
        pytest.param("cell", None, True, id="agent"),
        pytest.param("cell", Network.ALLOWLIST, True, id="agent with an allowlist"),
        pytest.param("cell", None, False, id="evaluation"),
        pytest.param("landlock", None, True, id="agent under Landlock"),
        pytest.param("landlock", None, False, id="evaluation under Landlock"),
    ],
)
async def test_from_inside_the_model_answers_and_nothing_else_does(
    kind: str,
    network: Network | None,
    is_agent: bool,
    outside: Outside,
    proxy: Proxy,
    bench: Bench,
    tmp_path: Path,
    claim: str,
) -> None:
    """An evaluation runs what the agent has left, and has no model either. With the host's network a cell reaches all but other cells.

    Landlock doesn't keep a program from UDP.
    """
    backend = backend_of(kind, tmp_path)
    hosts = {"allowed_hosts": ["example.org"]} if network is Network.ALLOWLIST else {}
    spec = RuntimeSpec.model_validate({"network": network, **hosts})
    listens = backend_of("process", tmp_path / "neighbour") if kind == "landlock" else backend  # it can't listen itself
    neighbour = await listens.create(Labels("polar", "n.0", 1, f"{claim}-neighbour"), RuntimeSpec())
    made = await backend.create(Labels("polar", "t.0", 1, claim), spec)
    inside = await backend.attach(made.handle, f"{claim}-later", spec, fresh=not is_agent)
    model = ModelAccess(proxy.url, bench.key("t.0"), "m") if is_agent else None
    environment = dict(inside.reached_at(model).env) if model else {}
    succeeded = set()
    async with running(neighbour, Exec((sys.executable, "-c", LISTEN)), "port"):
        environment |= outside.environment | {"NEIGHBOUR": (workspace_of(neighbour) / "port").read_text()}
        for name, attack in ATTACKS.items():
            command = (ANSWERED if model else "") + attack
            ended = await inside.exec(Exec(command, env=environment, model=model, timeout_s=30))
            assert ended.tail.startswith("the model answered\n") == is_agent, ended.tail
            assert not ended.timed_out, name
            if ended.exit_code == 0:
                succeeded.add(name)
    if network is Network.HOST:
        assert succeeded == set(ATTACKS) - {"another session's port"}
    else:
        assert succeeded == {"process": set(ATTACKS), "landlock": {"name server"}, "cell": set()}[kind]
    assert await outside.reached() == succeeded - {"control port", "another session's port"}
    for each in (neighbour, made):
        await each.remove()


PUBLIC = "93.184.215.14"
NAMES = {"allowed.example": PUBLIC, "other.example": PUBLIC, "sub.allowed.example": PUBLIC, "evil.example": "127.0.0.1"}
GET = "curl -sS -o /dev/null -w '%{http_code} '"
PROXIED = {
    "allowed": (f"{GET} http://allowed.example/; {GET} -p http://allowed.example:443/", "200 200 "),
    "another name of its address": (f"{GET} http://other.example/; {GET} http://sub.allowed.example/", "403 403 "),
    "its address": (f"{GET} http://{PUBLIC}/", "403 "),
    "another port": (f"{GET} http://allowed.example:8080/", "403 "),
    "another name for itself": (f"{GET} -H 'Host: allowed.example' http://other.example/", "403 "),
    "the host": (f"{GET} http://evil.example:$PORT/; {GET} --noproxy '' http://127.0.0.1:$PORT/", "403 403 "),
    "without the proxy": (
        f"{GET} --noproxy '*' http://allowed.example/ http://{PUBLIC}/ http://127.0.0.1:$PORT/ 2>&-",
        "000 000 000 ",
    ),
}
"""Commands, and the statuses that they print; 000 is no answer."""


async def test_with_an_allowlist_exactly_one_host_more_answers(
    tmp_path: Path, claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The internet is a server on loopback: names and the way to public addresses lead there."""
    loop, looked_up, connected = asyncio.get_running_loop(), set(), set()
    connect = loop.create_connection

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        looked_up.add(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (NAMES[host], port))]

    async def create_connection(protocol: Any, host: str, port: int, **options: Any) -> Any:
        connected.add((host, port))
        return await connect(protocol, "127.0.0.1", internet_port, **options)

    policy = {"network": Network.ALLOWLIST, "allowed_hosts": ["allowed.example"]}
    spec = RuntimeSpec.model_validate(policy)
    backend = backend_of("cell", tmp_path)
    made = await backend.create(Labels("polar", "t.0", 1, claim), spec)
    run = await backend.attach(made.handle, f"{claim}-run", spec)
    evaluation = await backend.attach(made.handle, f"{claim}-evaluation", spec, fresh=True)
    with serving(lambda _: (200, b"answered")) as (url, requests):
        internet_port = int(url.rpartition(":")[2])
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        monkeypatch.setattr(loop, "create_connection", create_connection)
        model = ModelAccess(url, "sk-polar-own", "m")
        for command, statuses in PROXIED.values():
            ended = await run.exec(Exec(f"{command}; true", env={"PORT": str(internet_port)}, model=model))
            assert ended.tail == statuses, command
        assert len(requests) == 2
        outer = await evaluation.exec(Exec(f"{GET} -x http://127.0.0.1:{ALLOWLIST_PORT} http://allowed.example/ 2>&-"))
        assert outer.tail == "000 ", "the policy of an evaluation is its own"
    assert looked_up == {"allowed.example"}
    assert connected == {(PUBLIC, 80), (PUBLIC, 443)}
    await made.remove()


HOLD_A_SECRET = """
import ctypes, os, time
# Any process of this user may read this memory: where Yama refuses that, no process could.
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
secret = os.environ["SECRET"]
unlinked = open("unlinked", "w")
unlinked.write(secret); unlinked.flush(); os.unlink("unlinked")
with open("secret", "w") as file: file.write(secret)
time.sleep(1000)
"""
FIND = """
import glob, os, re, sys
def programs(what):
    for process in glob.glob("/proc/[0-9]*"):
        try:
            if os.environ["MARK"].encode() in open(process + "/cmdline", "rb").read():
                yield from glob.glob(process + "/" + what)
        except OSError: pass
def memory(path):
    for line in open(path.replace("/mem", "/maps")):
        start, end, kind = re.match(r"(\\w+)-(\\w+) (\\S+)", line).groups()
        if "[stack]" in line or "[heap]" in line:
            with open(path, "rb") as file:
                file.seek(int(start, 16))
                yield file.read(int(end, 16) - int(start, 16))
def content(path):
    with open(path, "rb") as file: yield file.read(1 << 20)
place = sys.argv[1]
what = {"environment": "environ", "descriptors": "fd/3", "memory": "mem"}.get(place)
paths = programs(what) if what else [os.environ["FOLDER"] + "/secret"]
for path in paths:
    for data in (memory if place == "memory" else content)(path):
        if found := re.search(b"secret-[0-9a-f]{32}", data):
            print(found[0].decode())
            sys.exit()
sys.exit("nothing found")
"""


@pytest.mark.parametrize("place", ["files", "environment", "descriptors", "memory"])
@pytest.mark.parametrize("kind", KINDS)
async def test_another_sessions_secrets_are_out_of_reach(kind: str, place: str, tmp_path: Path, claim: str) -> None:
    backend = backend_of(kind, tmp_path)
    neighbour = await backend.create(Labels("polar", "n.0", 1, f"{claim}-neighbour"), RuntimeSpec())
    made = await backend.create(Labels("polar", "t.0", 1, claim), RuntimeSpec())
    secret = f"secret-{uuid.uuid4().hex}"
    holding = Exec((sys.executable, "-c", HOLD_A_SECRET, f"mark-{claim}"), env={"SECRET": secret})
    async with running(neighbour, holding, "secret"):
        hints = {"MARK": f"mark-{claim}", "FOLDER": str(workspace_of(neighbour))}
        ended = await made.exec(Exec((sys.executable, "-c", FIND, place), env=hints))
    assert (ended.exit_code == 0, secret in ended.tail) == ((kind == "process",) * 2), ended.tail
    for each in (neighbour, made):
        await each.remove()


@pytest.mark.parametrize("instead", ["mkdir -p {log}", "mkdir -p {logs}; ln -s {out} {log}"], ids=["folder", "link"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_puts_nothing_in_the_place_of_its_log_or_of_its_evaluations(
    kind: str, instead: str, tmp_path: Path, claim: str
) -> None:
    """With a folder there, a process loses its evaluation."""
    out = tmp_path / "out"
    backend, spec = backend_of(kind, tmp_path), RuntimeSpec()
    made = await backend.create(Labels("polar", "t.0", 1, claim), spec)
    run = await backend.attach(made.handle, f"{claim}-run", spec)
    evaluation = await backend.attach(made.handle, f"{claim}-evaluation", spec, fresh=True)
    attack = "; ".join(
        f"rm -rf {log}; {instead.format(log=log, logs=run.logs, out=out)}"
        for log in (run.logs / "agent.log", run.logs / "evaluate.log")
    )
    ended = await run.exec(Exec(f"echo ran; {{ {attack}; }} 2>/dev/null", log="agent.log"))
    logs = {path.name: path.is_file() and not path.is_symlink() for path in run.logs.iterdir()}
    assert logs == ({"agent.log": True} if kind != "process" else {"agent.log": False, "evaluate.log": False})
    assert ended.output() == b"ran\n"
    evaluating = Exec("echo evaluated", log="evaluate.log")
    if kind == "process" and "{out}" not in instead:
        with pytest.raises(SandboxError, match="Is a directory"):
            await evaluation.exec(evaluating)
    else:
        assert (await evaluation.exec(evaluating)).output() == b"evaluated\n"
    assert not out.exists(), "no log is written through a link"
    await made.remove()


OUTLIVE = """
( env -i setsid bash -c 'echo $$ > pid; exec -a TOKEN sleep 1000' </dev/null >/dev/null 2>&1 & )
until [ -s pid ]; do sleep 0.01; done
kill -9 $PPID
exit 5
"""


@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_that_kills_its_parent_ends_as_itself_and_leaves_nothing(
    kind: str, tmp_path: Path, claim: str, token: str, living: Living
) -> None:
    """A process kills its supervisor: its bad end becomes a fault of the machine, and its daemon without a mark lives on."""
    made = await backend_of(kind, tmp_path).create(Labels("polar", "t.0", 1, claim), RuntimeSpec())
    attack = Exec(OUTLIVE.replace("TOKEN", token), timeout_s=20)
    if kind == "process":
        with pytest.raises(SandboxError) as caught:
            await made.exec(attack)
        assert caught.value.code == "supervisor_lost"
        daemon = int((workspace_of(made) / "pid").read_text())
        await made.remove()
        assert living() == [f"{token} 1000 "]
        os.kill(daemon, signal.SIGKILL)
    else:
        ended = await made.exec(attack)
        assert (ended.exit_code, ended.timed_out) == (5, False)
        assert living() == []
        await made.remove()
