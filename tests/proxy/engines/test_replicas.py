"""Several servers as one engine: sessions keep to theirs, what dies is passed over, and what comes back is asked again.

The servers are scripted engines behind real sockets.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Cut, Hang, Status
from proxy.chat import ChatRequest, Message
from proxy.engines import context, health, retry
from proxy.engines.health import Server
from proxy.engines.pool import Engines
from proxy.engines.process import Process
from proxy.engines.replicas import Replicas
from proxy.engines.vllm_chat import VllmChat
from proxy.errors import EngineError, Refusal, refusal_of
from proxy.fleet import Fleet
from proxy.rendezvous import ranked
from tests.waiting import eventually
from topics.environment.settings import EngineSettings

ASKED = ChatRequest([Message("user", "hi")])
MODEL = "polar-scripted"
SERVERS = 3


class Reading(VllmChat):
    """Counts how often the start is read."""

    reads = 0

    async def started_ms(self) -> int | None:
        self.reads += 1
        return await super().started_ms()


class Servers:
    """Scripted engines on ports of their own; each can be killed and started again there."""

    def __init__(self, count: int) -> None:
        self.ports = [_free_port() for _ in range(count)]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.engines = {url: ScriptedEngine() for url in self.urls}
        self._running: dict[str, AsyncExitStack] = {}

    async def start(self, url: str) -> None:
        stack = self._running[url] = AsyncExitStack()
        await stack.enter_async_context(running(self.engines[url], port=int(url.rpartition(":")[2])))

    async def kill(self, url: str) -> None:
        if url in self._running:
            await self._running.pop(url).aclose()

    def asked(self, session_id: str) -> dict[str, int]:
        """Calls of a session by server."""
        counts = {url: len(engine.record.calls(session_id)) for url, engine in self.engines.items()}
        return {url: count for url, count in counts.items() if count}


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port: int = door.getsockname()[1]
        return port


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CHECK_S", 0.05)
    monkeypatch.setattr(context, "PAUSE_S", 0.05)
    monkeypatch.setattr(retry, "PAUSES_S", (0.01, 0.01))


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    servers = Servers(SERVERS)
    for url in servers.urls:
        await servers.start(url)
    try:
        yield servers
    finally:
        for url in servers.urls:
            await servers.kill(url)


@pytest.fixture
def processes() -> list[Process]:
    """As they are identified."""
    return []


@pytest.fixture
async def engine(servers: Servers, processes: list[Process]) -> AsyncIterator[Replicas]:
    async with opened(servers.urls, lambda _, process: processes.append(process)) as engine:
        # A server that is killed while it accepts a connection leaves a warning (Python 3.11).
        await eventually(lambda: len(processes) == SERVERS)
        yield engine


async def process_of(engine: Replicas, session_id: str) -> Process | None:
    """The process that answers a call."""
    call = Fleet(lambda: None).call("e")
    await engine.complete(ASKED, session_id, under_way=call)
    return call.process


@asynccontextmanager
async def opened(
    urls: list[str], on_process: Callable[[str, Process], None] = lambda *_: None
) -> AsyncIterator[Replicas]:
    engines = Engines.of({"e": EngineSettings(urls=tuple(urls), model=MODEL)}, deadline_s=5.0)
    await engines.start(on_process)
    try:
        yield engines.default
    finally:
        await engines.stop()


async def until_healthy(engine: Replicas, count: int) -> None:
    async with asyncio.timeout(5):
        while engine.healthy != count:
            await asyncio.sleep(0.01)


async def test_a_session_keeps_to_its_server_and_sessions_are_spread(engine: Replicas, servers: Servers) -> None:
    sessions = [f"t{number}.0" for number in range(20)]
    for _ in range(2):
        for session in sessions:
            await engine.complete(ASKED, session)
    for session in sessions:
        assert servers.asked(session) == {ranked(session, servers.urls)[0]: 2}
    assert len({url for session in sessions for url in servers.asked(session)}) == SERVERS


async def test_a_killed_server_costs_no_call_and_has_its_sessions_back_when_it_is_back(
    engine: Replicas, servers: Servers
) -> None:
    first, second, _ = ranked("t.0", servers.urls)
    await engine.complete(ASKED, "t.0")
    await servers.kill(first)
    for _ in range(3):
        await engine.complete(ASKED, "t.0")
    assert engine.healthy == 2
    assert servers.asked("t.0") == {first: 1, second: 3}
    await servers.start(first)
    await until_healthy(engine, 3)
    await engine.complete(ASKED, "t.0")
    assert servers.asked("t.0") == {first: 2, second: 3}


async def test_with_every_server_down_they_are_asked_all_the_same(engine: Replicas, servers: Servers) -> None:
    for url in servers.urls:
        await servers.kill(url)
    await until_healthy(engine, 0)
    with pytest.raises(EngineError) as fault:
        await engine.complete(ASKED, "t.0")
    assert (fault.value.code, refusal_of(fault.value).refusal) == ("unreachable", Refusal.UNAVAILABLE)
    assert any(f"the engine at {url.removeprefix('http://')}: " in str(fault.value) for url in servers.urls)
    await servers.start(ranked("t.0", servers.urls)[0])
    await engine.complete(ASKED, "t.0")
    assert engine.healthy >= 1


async def test_a_failed_try_is_made_again_at_another_server_without_the_wait_that_the_first_asks_for(
    engine: Replicas, servers: Servers
) -> None:
    first, second, _ = ranked("t.0", servers.urls)
    for fault in (Status(status=503, retry_after_s=20), Status(status=500), Cut(times=2), Cut(after_bytes=9)):
        servers.engines[first].faults.add(fault)
        async with asyncio.timeout(2):
            await engine.complete(ASKED, "t.0")
    assert servers.asked("t.0") == {first: 1, second: 4}, "the last one was cut as it was told"
    assert engine.healthy == SERVERS, "they all take connections"


async def test_what_one_server_refuses_no_other_is_asked(engine: Replicas, servers: Servers) -> None:
    servers.engines[ranked("t.0", servers.urls)[0]].faults.add(Status(status=400))
    with pytest.raises(EngineError, match="status 400"):
        await engine.complete(ASKED, "t.0")
    assert servers.asked("t.0") == {}


async def test_a_server_that_says_nothing_of_its_health_is_passed_over(
    engine: Replicas, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung process: connections are taken, by the kernel, and never answered."""
    monkeypatch.setattr("proxy.engines.vllm_chat.HEALTH_S", 0.05)
    first, second, _ = ranked("t.0", servers.urls)
    await servers.kill(first)
    with socket.create_server(("127.0.0.1", int(first.rpartition(":")[2]))):
        await until_healthy(engine, 2)
        await engine.complete(ASKED, "t.0")
    assert servers.asked("t.0") == {second: 1}


async def test_tokens_are_counted_and_told_by_any_server_that_is_up(engine: Replicas, servers: Servers) -> None:
    for url in servers.urls[:2]:
        await servers.kill(url)
    for _ in range(5):
        assert await engine.count_tokens(ASKED) > 0
        assert await engine.detokenize([1, 2])


async def test_the_shortest_context_counts_also_of_a_server_that_is_down_and_a_restarted_one_is_asked_again(
    engine: Replicas, servers: Servers
) -> None:
    first, second, third = servers.urls

    async def restart(url: str, length: int) -> None:
        await servers.kill(url)
        servers.engines[url] = ScriptedEngine(max_model_len=length)
        await servers.start(url)

    async def until_context(length: int) -> None:
        async def is_seen() -> bool:
            return await engine.context() == length

        await eventually(is_seen)

    for url, length in ((first, 8192), (second, 4096), (third, 16384)):
        await restart(url, length)
    assert await engine.context() == 4096
    await restart(third, 2048)
    await until_context(2048)
    for up, url in ((2, second), (1, third), (0, first)):
        await servers.kill(url)
        await until_healthy(engine, up)
        assert await engine.context() == 2048
    await restart(third, 1024)
    await until_context(1024)


async def test_a_call_that_is_given_up_leaves_its_turn(engine: Replicas, servers: Servers) -> None:
    for url in servers.urls:
        servers.engines[url].faults.add(Hang())
    call = asyncio.create_task(engine.complete(ASKED, "t.0"))
    async with asyncio.timeout(5):
        while sum(len(each.faults.pending()) for each in servers.engines.values()) == SERVERS:
            await asyncio.sleep(0.01)
    assert engine.admission.under_way == 1
    call.cancel()
    await asyncio.wait([call])
    assert engine.admission.under_way == 0


async def test_a_host_that_answers_no_packet_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full backlog stands for it: the kernel drops what comes."""
    monkeypatch.setattr("proxy.engines.connection.CONNECT_S", 0.1)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen(0)
        url = f"http://127.0.0.1:{door.getsockname()[1]}"
        with socket.create_connection(door.getsockname()):
            async with opened([url]) as engine:
                with pytest.raises(
                    EngineError, match=rf"the engine at {url.removeprefix('http://')} within 0\.1 s"
                ) as fault:
                    await engine.complete(ASKED, "t.0")
        assert fault.value.code == "unreachable"


async def test_calls_name_the_process_that_answered_which_is_identified_once(
    engine: Replicas, servers: Servers, processes: list[Process]
) -> None:
    starts = {url: round(each.started * 1000) for url, each in servers.engines.items()}
    for session in ("t.0", "t.1", "t.2"):
        process = await process_of(engine, session)
        assert process is not None
        assert process.started_ms == starts[process.url]
    assert len(processes) == SERVERS, "no call asks"


async def test_after_a_failure_the_first_answer_waits_until_its_process_is_identified(
    engine: Replicas, servers: Servers, processes: list[Process]
) -> None:
    """The new process has the port of the old one, and answers a call before any health check."""
    first = ranked("t.0", servers.urls)[0]
    for url in servers.urls:
        await servers.kill(url)
    with pytest.raises(EngineError):
        await process_of(engine, "t.0")
    servers.engines[first] = ScriptedEngine()
    await servers.start(first)
    assert await process_of(engine, "t.0") == Process(first, round(servers.engines[first].started * 1000))
    assert len(set(processes)) == SERVERS + 1


async def test_a_busy_server_that_fails_a_call_is_identified_as_the_process_that_it_was(
    engine: Replicas, servers: Servers, processes: list[Process]
) -> None:
    first = ranked("t.0", servers.urls)[0]
    before = await process_of(engine, "t.0")
    servers.engines[first].faults.add(Cut(times=2))
    async with asyncio.timeout(5):
        while await process_of(engine, "t.0") != before or len(processes) == SERVERS:
            await asyncio.sleep(0.01)
    assert len(set(processes)) == SERVERS


async def test_a_server_that_accepts_and_does_not_say_when_it_started_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.engines.vllm_chat.START_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        server = Server(
            f"http://127.0.0.1:{hung.getsockname()[1]}",
            VllmChat("http://127.0.0.1:" + str(hung.getsockname()[1]), MODEL),
        )
        asked = asyncio.gather(*(server.identify() for _ in range(3)))
        assert await asked == [None] * 3
        async with asyncio.timeout(0.04):
            assert await server.identify() is None
        await server.stop()


@pytest.fixture
async def reading() -> AsyncIterator[tuple[Reading, Replicas, int]]:
    """The client of a server that doesn't run yet, its engine, and the server's port."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    client = Reading(url, MODEL, deadline_s=5.0)
    engine = Replicas("e", {url: client}, model=MODEL, concurrency=100)
    yield client, engine, port
    await engine.stop()


async def test_a_server_that_is_replaced_between_two_calls_is_another_process_though_neither_call_fails(
    reading: tuple[Reading, Replicas, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No health check helps."""
    monkeypatch.setattr(health, "CHECK_S", 60.0)
    client, engine, port = reading
    for round_, calls in enumerate((1, 30, 1), 1):  # the second leaves many kept connections
        one = ScriptedEngine()
        one.started += round_  # type: ignore[misc] # as if seconds had passed
        async with running(one, port=port):
            found = await asyncio.gather(*(process_of(engine, "t.0") for _ in range(calls)))
            assert {process and process.started_ms for process in found} == {round(one.started * 1000)}
            assert client.reads == round_, "once per process, however many connections it has closed"


async def test_a_server_that_drops_a_kept_connection_as_it_is_written_to_is_another_process(
    reading: tuple[Reading, Replicas, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CHECK_S", 60.0)
    client, engine, port = reading
    server = ScriptedEngine()
    async with running(server, port=port):
        before = await process_of(engine, "t.0")
        server.faults.add(Cut())
        assert await process_of(engine, "t.0") == before
        assert client.reads == 2


async def test_calls_on_kept_connections_read_the_start_once(reading: tuple[Reading, Replicas, int]) -> None:
    client, engine, port = reading
    async with running(ScriptedEngine(), port=port):
        await engine.start()
        for _ in range(20):
            await asyncio.gather(*(process_of(engine, "t.0") for _ in range(5)))
    assert client.reads == 1


async def test_connections_that_this_side_closes_say_nothing_about_the_server(
    reading: tuple[Reading, Replicas, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that were idle for too long, nor that of a call which was cancelled."""
    monkeypatch.setattr("proxy.engines.connection.KEEPALIVE_S", 0.0)
    client, engine, port = reading
    server = ScriptedEngine()
    async with running(server, port=port):
        for _ in range(3):
            await process_of(engine, "t.0")
            server.faults.add(Hang())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await process_of(engine, "t.0")
    assert client.reads == 1


@pytest.mark.parametrize("login", ["", "user:secret@"])
async def test_an_engine_that_reports_no_start_has_processes_without_one(login: str) -> None:
    class Plain:
        """A plug-in without `ReportsStart`."""

        owns_prompts = False

    server = Server(f"http://{login}e:1", Plain())  # type: ignore[arg-type] # it is asked nothing
    assert await server.identify() == Process("http://e:1", None)
    assert server.process == Process("http://e:1", None)


@pytest.mark.parametrize(
    "fault", [EngineError("cut", ""), EngineError("too_large", ""), EngineError("timeout", ""), ZeroDivisionError()]
)
async def test_a_start_that_cannot_be_read_fails_no_call_and_is_not_read_for_each(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CHECK_S", 60.0)

    class Broken:
        """A plug-in whose `started_ms` fails."""

        owns_prompts = False
        closings = 0
        reads = 0

        async def started_ms(self) -> int | None:
            self.reads += 1
            raise fault

    client = Broken()
    server = Server("http://e:1", client)  # type: ignore[arg-type] # it is asked nothing else
    for _ in range(3):
        assert await server.identify() is None
    assert (server.process, client.reads) == (None, 1)
    server.mark_failed()
    await server.identify()
    assert client.reads == 2, "it may be another process"
