"""The embedded broker, as the real Kafka that it is: what it keeps, and how each process around it may die.

The one stand-in is a local web server in Maven Central's place, which cuts answers short on purpose.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from polar.embedded import Broker, BrokerError, class_archive, distribution, folder
from polar.embedded.broker import new_cluster_id
from polar.embedded.distribution import TRIES, Jar, download, locked_jars
from polar.embedded.properties import MAX_MESSAGE_BYTES, Ports
from tests.serving import serving
from tests.small_disks import needs_root, small_disk
from tests.waiting import until
from topics.environment import cache

pytestmark = pytest.mark.hard

DEADLINE_S = 30.0
BACK_AGAIN_S = 40.0
"""For a broker that was killed, on a busy machine; on an idle one it is back after 5 to 7 s."""

START_AND_HOLD = """
import sys
from pathlib import Path
from polar.embedded import Broker
broker = Broker(Path(sys.argv[1]), announce=lambda line: print(line, flush=True))
broker.start()
print("serves", broker.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of this module, which its tests may kill."""
    broker = Broker(tmp_path_factory.mktemp("own"), announce=print)
    yield broker
    broker.stop()


@pytest.fixture
def broker(own: Broker) -> Broker:
    if not own.alive():
        own.start()
    return own


async def make_topic(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, max_request_size=MAX_MESSAGE_BYTES
    )
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(topic, value)
    finally:
        await producer.stop()


async def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_the_largest_completion_fits(broker: Broker, namespace: str) -> None:
    await make_topic(broker.bootstrap, namespace)
    largest = os.urandom(32 * 1024 * 1024)
    await produce(broker.bootstrap, namespace, largest)
    assert (await consume(broker.bootstrap, namespace, 1)) == [largest]


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_a_broker_is_soon_back_on_its_port_with_its_data(broker: Broker, namespace: str, killed: bool) -> None:
    before = broker.bootstrap
    await make_topic(before, namespace)
    await produce(before, namespace, b"kept")
    started = time.monotonic()
    if killed:
        os.kill(broker.pid, signal.SIGKILL)
        assert await asyncio.to_thread(broker.wait, DEADLINE_S) == 128 + signal.SIGKILL
    else:
        await asyncio.to_thread(broker.stop)
    assert not broker.alive()
    await asyncio.to_thread(broker.start)
    assert time.monotonic() - started < BACK_AGAIN_S
    assert broker.bootstrap == before
    await produce(before, namespace, b"after")
    assert await consume(before, namespace, 2) == [b"kept", b"after"]


def test_killing_the_supervisor_kills_the_jvm(broker: Broker) -> None:
    jvm = psutil.Process(broker.pid)
    supervisor = jvm.parent()
    assert supervisor is not None
    supervisor.kill()
    until(lambda: is_gone(jvm.pid), DEADLINE_S)
    broker.start()
    assert broker.alive()


def test_a_signal_to_the_supervisor_leaves_the_end_to_its_parent(broker: Broker) -> None:
    supervisor = psutil.Process(broker.pid).parent()
    assert supervisor is not None
    supervisor.send_signal(signal.SIGTERM)
    supervisor.send_signal(signal.SIGINT)
    assert broker.wait(timeout=1) is None
    broker.stop()
    assert broker.wait() == 128 + signal.SIGTERM, "the JVM ended by itself when asked"


def test_a_second_broker_on_the_folder_is_refused(broker: Broker) -> None:
    running = broker.pid
    folder = Path(psutil.Process(running).cwd()).parent
    with pytest.raises(BrokerError, match=rf"a broker \(process {running}\) already runs on .*--data"):
        Broker(folder, announce=print).start()
    with pytest.raises(BrokerError, match="already runs"):
        broker.start()
    assert broker.pid == running


@contextlib.contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that starts a broker on `folder` and holds it."""
    command = [sys.executable, "-c", START_AND_HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def jvms_of(folder: Path) -> list[int]:
    """Processes that work in the broker's folder: its supervisor and its JVM."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(folder / "kafka") and not is_gone(process.pid):
                found.append(process.pid)
    return found


@pytest.mark.parametrize("moment", ["preparing", "serves"])
def test_kill_9_of_the_parent_leaves_no_jvm_and_a_folder_that_starts(tmp_path: Path, moment: str) -> None:
    with holder(tmp_path) as parent:
        assert parent.stdout is not None
        assert any(line.startswith(moment) for line in parent.stdout)
        until(lambda: len(jvms_of(tmp_path)) == 2, DEADLINE_S)
        parent.kill()
        until(lambda: not jvms_of(tmp_path), DEADLINE_S)
    with Broker(tmp_path, announce=print) as successor:
        assert successor.alive()


def test_a_broker_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    with Broker(tmp_path, announce=print):
        pass
    (tmp_path / "kafka" / "data" / "meta.properties").write_text("version=1\nnode.id=7\n")
    broker = Broker(tmp_path, announce=print)
    with pytest.raises(BrokerError, match=r"(?s)ended with code 1 while it started.*meta\.properties"):
        broker.start()
    assert not broker.alive()


def test_a_taken_port_is_named_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (tmp_path / "kafka").mkdir()
        (tmp_path / "kafka" / "ports.json").write_text(json.dumps({"broker": port, "controller": port + 1}))
        with pytest.raises(BrokerError, match=rf"port {port}, .* is taken .* delete .*ports\.json"):
            Broker(tmp_path, announce=print).start()


def test_a_port_that_is_taken_as_the_broker_starts_for_the_first_time_costs_it_another_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as another:
        another.bind(("127.0.0.1", 0))
        another.listen()
        taken = another.getsockname()[1]
        choose, is_free = folder._free_ports, folder._is_free
        monkeypatch.setattr(folder, "_is_free", lambda port: port == taken or is_free(port))
        monkeypatch.setattr(
            folder, "_free_ports", lambda but: choose(but) if but else Ports(taken, choose(but).controller)
        )
        with Broker(tmp_path, announce=print) as broker:
            assert broker.bootstrap != f"127.0.0.1:{taken}"
            found = broker.bootstrap
        with Broker(tmp_path, announce=print) as broker:
            assert broker.bootstrap == found, "and it keeps that"


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The class path of an own cache that holds Kafka's jars, but no class archive."""
    installed = Path(distribution.class_path(print).partition(os.pathsep)[0]).parent
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / installed.name).symlink_to(installed)
    monkeypatch.setenv("POLAR_CACHE", str(cache))
    return distribution.class_path(print)


def test_the_jvm_maps_the_class_archive(broker: Broker) -> None:
    archive = class_archive.folder(distribution.class_path(print))
    assert any(Path(mapped.path).parent == archive for mapped in psutil.Process(broker.pid).memory_maps())


def test_kafka_starts_without_a_class_archive_that_java_refuses(tmp_path: Path, jars: str) -> None:
    archive = class_archive.folder(jars)
    archive.mkdir()
    (archive / "classes.aot").write_bytes(os.urandom(5000))
    lines: list[str] = []
    with Broker(tmp_path, announce=lines.append) as broker:
        assert broker.alive()
    assert [line for line in lines if "class archive" in line] == [
        f"Kafka starts without its class archive, which Java refuses; delete {archive} and the next start makes it again"
    ]


def test_kafka_starts_without_a_class_archive_that_cannot_be_made(tmp_path: Path, jars: str) -> None:
    archive = class_archive.folder(jars)
    archive.with_name(f".{archive.name}.lock").mkdir()
    lines: list[str] = []
    with Broker(tmp_path, announce=lines.append) as broker:
        assert broker.alive()
        broker.kill()
        broker.start()  # which doesn't try again
    (line,) = [line for line in lines if "class archive" in line]
    assert line.startswith(
        f"Kafka starts without its class archive, which could not be made: cannot write to the cache {archive.parent}"
    )


def test_a_class_archive_whose_making_hangs_is_given_up(jars: str) -> None:
    def hang(archive: Path) -> None:
        raise subprocess.TimeoutExpired(f"java, which makes {archive}", 1.0)

    lines: list[str] = []
    assert class_archive.options(jars, hang, lines.append) == []
    assert "could not be made: Command 'java, which makes" in lines[-1]


def test_a_jar_is_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / JAR.name
    assert not JAR.matches(file)
    for content, matches in ((CONTENT, True), (CONTENT[:-1], False)):
        file.write_bytes(content)
        assert JAR.matches(file) == matches


def test_the_lock_names_each_jar_once_and_kafka_in_one_version() -> None:
    jars = locked_jars()
    assert len({jar.name for jar in jars}) == len(jars) == 46
    assert {jar.version for jar in jars if jar.group == "org.apache.kafka"} == {"4.3.1"}


@contextlib.contextmanager
def repository(content: bytes, cut: int) -> Iterator[tuple[str, list[str]]]:
    """Serves `content` at every path that ends in .jar, the first `cut` times only half of it; URL, and paths served."""
    served: list[str] = []

    def answer(_: object) -> tuple[int, object, dict[str, str]]:
        path = requests[-1][0]
        if not path.endswith(".jar"):
            return 404, b"", {}
        served.append(path)
        sent = content[: len(content) // 2] if len(served) <= cut else content
        return 200, sent, {"Content-Length": str(len(content))}

    with serving(answer) as (url, requests):
        yield url, served


CONTENT = os.urandom(1_500_000)
JAR = Jar(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "org.example", "thing", "1")


def test_a_download_that_breaks_is_tried_again_and_announced(tmp_path: Path) -> None:
    said: list[str] = []
    with repository(CONTENT, cut=TRIES - 1) as (url, _):
        download([JAR], tmp_path, said.append, url)
    assert [path.name for path in tmp_path.iterdir()] == ["thing-1.jar"]
    assert JAR.matches(tmp_path / "thing-1.jar")
    assert said[0].startswith("downloading Apache Kafka 4.3.1 into ")
    assert len([line for line in said if line.startswith("thing-1.jar is incomplete")]) == TRIES - 1
    assert said[-1] == "Apache Kafka 4.3.1 is downloaded: 1.5 MB"


def test_a_meter_is_told_of_every_byte_and_a_file_that_came_twice_counts_once(tmp_path: Path) -> None:
    received: list[int] = []

    @contextlib.contextmanager
    def meter(total: int) -> Iterator[Callable[[int], None]]:
        assert total == len(CONTENT)
        yield received.append
        received.append(-1)

    said: list[str] = []
    with repository(CONTENT, cut=1) as (url, _):
        download([JAR], tmp_path, said.append, url, meter)
    assert received[-2:] == [len(CONTENT), -1]
    assert len(received) > 3
    assert max(received) == len(CONTENT)
    assert not any("MB of" in line or "is downloaded" in line for line in said)


@needs_root
def test_a_download_onto_a_full_disk_blames_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", 1) as disk, repository(CONTENT, cut=0) as (url, served):
        monkeypatch.setenv("POLAR_CACHE", str(disk))
        with pytest.raises(cache.CacheError, match=f"the disk of {disk} is full .* or set POLAR_CACHE"):
            cache.installed(
                "jars", lambda folder: download([JAR], folder, print, url), whole=Path.exists, announce=print
            )
        assert len(served) == 1
        assert [path.name for path in disk.iterdir()] == [".jars.lock"]


def test_a_download_that_stays_broken_is_given_up_with_the_way_out(tmp_path: Path) -> None:
    jar = Jar("0" * 64, 4, "org.example", "thing", "1")
    with repository(b"else", cut=0) as (url, served):
        with pytest.raises(BrokerError, match=r"(?s)thing-1\.jar could not be downloaded .* set POLAR_KAFKA"):
            download([jar], tmp_path, print, url)
        assert len(served) == TRIES


def test_no_cluster_id_looks_like_an_option() -> None:
    assert not [made for made in (new_cluster_id() for _ in range(2000)) if made.startswith("-") or len(made) != 22]
