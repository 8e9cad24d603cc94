"""A system whose Kafka asks who everybody is: each role works with its own rights alone, and no secret is told.

One system for all tests, in order: what the last one searches is what the ones before have left.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.consumers.webhooks.endpoint import receiving
from tests.security import scan
from tests.security.system import CONTROL, WEBHOOK, WORKERS, Secured, secured
from tests.security.watching import Processes
from tests.waiting import eventually
from topics import control, stages, tasks
from topics.control import Discard
from topics.environment.redaction import KEY_SHOWN, SECRET_SHOWN
from topics.log import kafka
from topics.log.producer import LogProducer
from topics.stages import Ticket
from topics.types.session import Stage
from topics.types.trajectory import Trajectory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

BLABBER = Path(__file__).with_name("blabber.py")
REFUSED_S = 100.0
"""For a refusal to be said: a second or two after the imports, where the machine is idle."""
DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured") / "data"


@pytest.fixture(scope="module")
def processes(data: Path) -> Processes:
    return Processes(data)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(data: Path, processes: Processes) -> AsyncIterator[Secured]:
    async with secured(data, [f"{role}-1" for role in WORKERS]) as started:
        with processes:
            yield started


async def ended_well(system: Secured, user: str, *arguments: str, stdin: str = "") -> str:
    """What a command of this user said on stdout."""
    code, out, said = await system.polar_as(user, *arguments, stdin=stdin)
    assert code == 0, (user, arguments, said)
    return out


async def refused(system: Secured, user: str, *arguments: str, **settings: str) -> str:
    """What a command says that ends because Kafka won't have it, and doesn't wait."""
    async with asyncio.timeout(REFUSED_S):
        code, _, said = await system.polar_as(user, *arguments, settings=settings)
    assert code == 3, said
    return said


async def test_a_session_goes_its_whole_way_with_each_role_in_its_own_rights(system: Secured, data: Path) -> None:
    async with receiving() as endpoint:
        task = system.task("talk", 2, 1, callback_url=f"{endpoint.url}/groups", output_topic="mine")
        await ended_well(system, "submitter", "submit", "-", "--wait", stdin=json.dumps(task))
        await eventually(lambda: endpoint.calls, DEADLINE_S)
        await eventually(lambda: list((data / "lake" / "polar" / "trajectories").glob("*.parquet")), DEADLINE_S)
    assert endpoint.calls[0].verified(WEBHOOK)["data"]["task_id"] == "talk"
    told, shown, _, rows, _, again = await asyncio.gather(
        ended_well(system, "trainer", "trajectories", "--topic", "mine", "--format", "jsonl"),
        ended_well(system, "reader", "show", "talk.0", "--format", "json"),
        ended_well(system, "trainer", "fleet", "pause"),
        ended_well(system, "nobody", "sql", "SELECT session_id FROM trajectories", "--format", "json"),
        ended_well(system, "admin", "topics", "apply"),
        ended_well(system, "rebuild", "rebuild", "--into", "again", "--builder", "per_request", "--format", "json"),
    )
    assert json.loads(again)["sessions"] == 1
    assert json.loads(told)["session_id"] == json.loads(rows)[0]["session_id"] == "talk.0"
    assert json.loads(shown)["status"] == "COMPLETED"
    await ended_well(system, "trainer", "fleet", "resume")
    assert all("efused" not in system.log(f"{role}-1") for role in WORKERS)


async def test_dead_letters_are_listed_by_readers_and_sent_again_by_who_may_replay(system: Secured) -> None:
    producer = LogProducer(system.settings)
    await producer.start()
    await producer.send_bytes(tasks.TOPIC.full_name(system.settings.namespace), b"{", key=b"unreadable")
    await producer.stop()

    async def letters() -> list[int]:
        found = json.loads(await ended_well(system, "reader", "dead-letters", "list", "--format", "json"))
        return [one["letter"] for one in found if one["key"] == "unreadable"]

    (letter,) = await eventually(letters, DEADLINE_S)
    await ended_well(system, "reader", "dead-letters", "show", str(letter))
    sent = json.loads(await ended_well(system, "replayer", "dead-letters", "replay", str(letter), "--format", "json"))
    assert [one["sent"] for one in sent] == [True]

    async def is_refused_again() -> bool:
        return len(await letters()) == 2

    await eventually(is_refused_again, DEADLINE_S)
    said = await refused(system, "reader", "dead-letters", "replay", str((await letters())[-1]))
    # A producer first asks for an id, which who may write to no topic at all doesn't get.
    assert "Kafka refuses reader something of the cluster: an ACL is missing" in said


async def test_who_lacks_a_right_or_isnt_let_in_is_told_so_in_seconds(system: Secured, data: Path) -> None:
    guess = data / "guess"
    guess.write_text("guessed")
    unheard = {"POLAR_KAFKA_SASL_PASSWORD_FILE": str(guess)}
    untrusted = {"POLAR_KAFKA_CA_FILE": str(system.strangers)}
    said = await asyncio.gather(
        refused(system, "nobody", "status"),
        refused(system, "evaluate", "worker", "run"),
        refused(system, "run", "worker", "analytics"),
        refused(system, "fanout", "worker", "builder"),
        refused(system, "reader", "status", **unheard),
        refused(system, "reader", "worker", "run", **untrusted),
    )
    for words, text in zip(
        (
            "Kafka refuses nobody the topic polar.sessions: an ACL is missing (`polar topics acl`",
            "Kafka refuses evaluate the consumer group polar.run.default: an ACL is missing",
            "Kafka refuses run the consumer group polar.analytics: an ACL is missing",
            "Kafka refuses fanout the topic polar.completions: an ACL is missing",
            "refuses the login of reader by SCRAM-SHA-256",
            "set POLAR_KAFKA_CA_FILE",
        ),
        said,
        strict=True,
    ):
        assert words in text, text


def blabbing(system: Secured, task_id: str, code: int = 0, **more: Any) -> str:
    shell = {"command": f"{sys.executable} {BLABBER}", **more.pop("shell", {})}
    env = {"CODE": str(code), "KEYS_FILE": str(system.secrets / "keys.json"), **more.pop("env", {})}
    agent = {"harness": "shell", "custom_shell": shell, "env": env}
    # A process has its key in its environment, where a cell has none.
    runtime = {"backend": "process", **more.pop("runtime", {})}
    return json.dumps({"task_id": task_id, "instruction": "say all", "agent": agent, "runtime": runtime, **more})


async def misbehave(system: Secured) -> None:
    """Harnesses that print their keys and fail, one whose worker is killed, calls with keys that are no good, hostile records."""
    released = system.data / "released"
    tasks = "".join(
        f"{line}\n"
        for line in (
            blabbing(system, "blab"),
            blabbing(system, "fails", 3),
            blabbing(system, "nowhere", shell={"cwd": "not-there"}),
            blabbing(
                system, "unmade", runtime={"prepare": [{"type": "exec", "command": "env; exit 4"}]}, max_attempts=1
            ),
            blabbing(system, "killed", env={"HELD_UNTIL": str(released)}),
        )
    )
    waiting = asyncio.create_task(system.polar_as("submitter", "submit", "-", "--wait", stdin=tasks))
    async with asyncio.timeout(DEADLINE_S * 2):
        while not await is_running(system, "killed"):
            await asyncio.sleep(0.5)
        await system.kill("run-1")
        released.touch()
        await system.start("run-2")
        await hostile(system)
        await at_the_control_port(system)
        code, _, said = await waiting
    assert code == 1, said


async def is_running(system: Secured, task_id: str) -> bool:
    _, out, _ = await system.polar_as("reader", "status", task_id)
    return "running" in out


async def hostile(system: Secured) -> None:
    """Records of one who may write, and names what isn't his."""
    outside = system.data / "secrets"
    handle = {"backend": "process", "host": "h", "id": "../../../secrets"}
    producer = LogProducer(system.settings)
    await producer.start()
    try:
        await producer.send(control.TOPIC, Discard("talk.0", "../../../secrets", handle), key="talk.0")
        for stage in Stage:
            ticket = Ticket(
                "../../x.0", 0, 1, stage, 10.0, body=b"{}", body_ref="blob:sha256/../../secrets", runtime=handle
            )
            await producer.send(stages.topic(stage, "default"), ticket, key="x", partition=0)
    finally:
        await producer.stop()
    assert (outside / "keys.json").exists()


async def at_the_control_port(system: Secured) -> None:
    async with aiohttp.ClientSession(system.control_url) as http:
        for shown, wanted in ((CONTROL, 201), (CONTROL[:-1], 401), ("", 401)):
            async with http.post("/v1/sessions", json={}, headers={"Authorization": f"Bearer {shown}"}) as answer:
                body = await answer.text()
                assert answer.status == wanted, body
                assert CONTROL[:-1] not in body
            if wanted == 201:
                opened = json.loads(body)
        for path in ("/metrics", "/v1/detokenize", f"/v1/sessions/{opened['key']}/close", f"/nowhere/{opened['key']}"):
            async with http.request("GET" if path == "/metrics" else "POST", path, json={}) as answer:
                assert answer.status in (401, 404), path
                assert opened["key"][:20] not in await answer.text(), path


async def figures(system: Secured) -> bytes:
    """What every process tells Prometheus."""
    names = [f"{role}-1" for role in WORKERS if role != "run"] + ["run-2"]
    text = b""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {CONTROL}"}) as http:
        for url in [*[await system.metrics_url(name) for name in names], f"{system.control_url}/metrics"]:
            async with http.get(url) as answer:
                assert answer.status == 200
                text += await answer.read()
    return text


async def on_kafka(system: Secured) -> list[str]:
    """Secrets in any record of any topic, Kafka's own among them."""
    reader = kafka.consumer(system.settings, committed=False)
    asking = kafka.admin(system.settings)
    await asking.start()
    described = await asking.describe_topics()
    await asking.close()
    partitions = [kafka.TopicPartition(t["topic"], p["partition"]) for t in described for p in t["partitions"]]
    found: list[str] = []
    await reader.start()
    try:
        reader.assign(partitions)
        ends = await reader.end_offsets(partitions)
        async with asyncio.timeout(DEADLINE_S):
            while any([await reader.position(partition) < end for partition, end in ends.items()]):
                for source, records in (await reader.getmany(timeout_ms=500)).items():
                    for record in records:
                        held = b" ".join([record.key or b"", record.value or b"", repr(record.headers).encode()])
                        found += scan.found_in(held, f"{source.topic}[{source.partition}]@{record.offset}")
    finally:
        await kafka.stop(reader, 5)
    assert len(partitions) > 50
    return found


async def test_no_secret_is_told_whatever_happens(system: Secured, processes: Processes, data: Path) -> None:
    await misbehave(system)
    outputs = [output for output in await system.outputs() if isinstance(output, Trajectory)]
    assert {output.task_id for output in outputs} >= {"blab", "fails", "nowhere", "unmade", "killed"}
    said, shown, told, rows, asked = await asyncio.gather(
        ended_well(system, "reader", "show", "blab.0", "--artifact", "agent_log"),
        ended_well(system, "reader", "show", "fails.0", "--full"),
        ended_well(system, "reader", "trajectories", "--format", "jsonl"),
        ended_well(system, "reader", "sql", "SELECT * FROM sessions", "--format", "csv"),
        figures(system),
    )
    assert said.count(KEY_SHOWN) >= 4, "the harness has printed its environment"
    assert said.count(SECRET_SHOWN) >= 2, "the harness has printed the signing secrets"
    assert SECRET_SHOWN in shown, "the harness has sent the signing secrets to the model"
    assert "LEAK" not in said, said
    assert '"session_id":"blab.0"' in told.replace(" ", "")
    texts = {"artifact": said, "show": shown, "trajectories": told, "sql": rows, "metrics": asked.decode()}
    leaks = [leak for name, text in texts.items() for leak in scan.found_in(text.encode(), name)]
    leaks += await on_kafka(system)
    for name in [name for name, process in system.processes.items() if process.returncode is None]:
        system.signal(name, signal.SIGTERM)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(process.wait() for process in system.processes.values()))
    own = [data / "secrets", data / "kafka" / "node-1" / "kafka" / "server.properties", data / "guess"]
    leaks += scan.in_files(data, own)
    assert leaks == []
    assert processes.found == set()
    assert processes.harnesses, "harnesses were seen"
    assert system.runtimes() == []
