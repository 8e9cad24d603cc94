"""From the log to an endpoint, whatever the endpoint does and whichever process dies: on a real broker, over real connections."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from consumers.webhooks.worker import run_webhooks
from tests.consumers.stages.coordinating import PATIENCE_S
from tests.consumers.test_fanout import letters
from tests.consumers.webhooks.endpoint import answer, hang, receiving
from tests.waiting import eventually
from topics import webhooks
from topics.contract import catalogue
from topics.environment import webhook_signing as signing
from topics.environment.settings import Settings, write_env_file
from topics.log import admin, kafka
from topics.log.follow import Follower, Since
from topics.log.producer import LogProducer
from topics.types.errors import NotReadyError
from topics.types.session import Status
from topics.webhooks import Owed, Record, Settled


def owed(task_id: str, url: str, tries: int = 0, failed_ms: int = 0) -> Owed:
    rewards, statuses = [0.5, None], [Status.COMPLETED, Status.FAILED]
    return Owed(task_id, url, 1_700_000_000_000, rewards, statuses, tries=tries, failed_ms=failed_ms)


class Log:
    """Writes and reads `polar.webhooks`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.producer = LogProducer(settings)
        self.records: list[Record] = []

    async def write(self, *records: Owed) -> None:
        for record in records:
            await self.producer.send(webhooks.TOPIC, record, key=record.task_id, task_id=record.task_id)

    def of(self, task_id: str) -> list[Record]:
        return [record for record in self.records if record.task_id == task_id]

    async def settled(self, *task_ids: str) -> list[Settled]:
        """The outcomes of these tasks, once all are settled."""

        def look() -> list[Settled] | None:
            ends = [record for record in self.records if isinstance(record, Settled) and record.task_id in task_ids]
            return ends if len(ends) >= len(task_ids) else None

        return await eventually(look, PATIENCE_S)

    async def tried(self, task_id: str, times: int = 1) -> Owed:
        """The task's record after this many failed attempts."""
        return await eventually(
            lambda: next((r for r in self.of(task_id) if isinstance(r, Owed) and r.tries == times), None), PATIENCE_S
        )


@pytest.fixture
async def settings(kafka: str, namespace: str, tmp_path: Path) -> Settings:
    signing.ensure_secret_file(tmp_path / "webhook.secret")
    found = Settings(data=tmp_path, namespace=namespace, kafka=kafka, replication=1, min_insync=1)
    await admin.apply(found, catalogue.FIXED, embedded=True)
    return found


@pytest.fixture
async def log(settings: Settings) -> AsyncIterator[Log]:
    log = Log(settings)
    follower = Follower(
        settings, webhooks.TOPIC, lambda record, _: log.records.append(record), since=Since.BEGINNING, committed=True
    )
    await log.producer.start()
    await follower.start()
    try:
        yield log
    finally:
        await follower.stop()
        await log.producer.stop(1.0)


@pytest.fixture
def secret(settings: Settings) -> str:
    return signing.read_secrets(settings.webhook_secret_path)[0]


@asynccontextmanager
async def delivering(settings: Settings, workers: int = 1) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = [asyncio.create_task(run_webhooks(settings, stop)) for _ in range(workers)]
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await asyncio.gather(*running)


def closed_port() -> int:
    """A port of this machine where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_endpoints_get_their_webhooks_whatever_others_do_and_each_answer_has_its_consequence(
    settings: Settings, log: Log, secret: str
) -> None:
    async with delivering(settings), receiving() as dead, receiving() as well:
        dead.answers["/hangs"] = hang
        well.answers |= {
            "/moved": answer(302, location=f"{well.url}/elsewhere"),
            "/gone": answer(410),
            "/busy": answer(503, retry_after="600"),
            "/flaky": answer(500, 200),
        }
        nobody = f"http://127.0.0.1:{closed_port()}/x"
        await log.write(*(owed(f"dead{n}", f"{dead.url}/hangs") for n in range(40)))
        await log.write(*(owed(f"nobody{n}", nobody) for n in range(5)))
        await log.write(*(owed(path, f"{well.url}/{path}") for path in ("moved", "gone", "busy", "flaky")))
        await log.write(owed("fine", f"{well.url}/fine?key=hidden"))
        ends = await log.settled("fine", "gone")
        assert {end.task_id: end.outcome for end in ends} == {"fine": "delivered", "gone": "gone"}
        (call,) = well.at("/fine")
        assert call.verified(secret)["data"]["rewards"] == [0.5, None]
        assert call.id == f"{settings.namespace}.group.fine"
        moved, busy, absent = await log.tried("moved"), await log.tried("busy"), await log.tried("nobody0")
        assert (moved.why, busy.why) == ("it answered 302", "it answered 503")
        assert absent.why.startswith("it can't be reached: ")
        assert busy.due_ms - busy.failed_ms == 600_000
        assert not well.at("/elsewhere")
        assert len(dead.calls) == 8
        assert await log.settled("flaky") == [Settled("flaky", "delivered", 2)]
        first, second = well.at("/flaky")
        assert first.id == second.id
        assert first.body == second.body
        assert second.verified(secret) == first.verified(secret)
        assert 4 <= second.at - first.at < 8
    (letter,) = await letters(settings, 1)
    assert letter["reason"].startswith("not delivered to 127.0.0.1:")
    assert letter["reason"].endswith(" after 1 attempt: it answered 410 and accepts no more")


async def test_a_successor_delivers_what_is_pending_and_nothing_that_was_settled(
    settings: Settings, log: Log, secret: str
) -> None:
    async with receiving() as endpoint:
        endpoint.answers["/later"] = answer(500, 503, 200)
        tasks = [f"t{n}" for n in range(20)]
        async with delivering(settings, workers=2):
            await log.write(owed("later", f"{endpoint.url}/later"), *(owed(t, f"{endpoint.url}/{t}") for t in tasks))
            await log.settled(*tasks)
            await log.tried("later")
        added = signing.new_secret()
        settings.webhook_secret_path.write_text(f"{added}\n{secret}\n")
        before = len(endpoint.calls)
        async with delivering(settings):
            await log.producer.send_bytes(webhooks.TOPIC.full_name(settings.namespace), b"\xff no record")
            newer = b"\x81\xa4type\xa5newer"
            await log.producer.send_bytes(webhooks.TOPIC.full_name(settings.namespace), newer)
            await log.write(owed("last", f"{endpoint.url}/last"))
            await log.settled("last")
            (second,) = await eventually(lambda: endpoint.at("/later")[1:], PATIENCE_S)
            (letter,) = await letters(settings, 1)
        assert {call.path for call in endpoint.calls[:before]} == {f"/{task}" for task in ["later", *tasks]}
        assert {call.path for call in endpoint.calls[before:]} == {"/last", "/later"}
        assert second.verified(added) == second.verified(secret)
    assert letter["reason"].startswith("not a record")
    assert await committed(settings) > 0


async def test_a_killed_worker_repeats_the_deliveries_that_were_in_progress(settings: Settings, log: Log) -> None:
    async with receiving() as endpoint:
        endpoint.answers |= {"/slow": first_hangs, "/down": answer(500, 204)}
        await log.write(owed("slow", f"{endpoint.url}/slow"), owed("down", f"{endpoint.url}/down"))
        async with process(settings) as killed:
            await log.tried("down")
            await eventually(lambda: endpoint.at("/slow"), PATIENCE_S)
            killed.kill()
            await killed.wait()
        async with process(settings) as successor:
            ends = await log.settled("slow", "down")
            successor.terminate()
            async with asyncio.timeout(20):
                assert await successor.wait() == 0
        assert {(end.task_id, end.outcome, end.tries) for end in ends} == {
            ("slow", "delivered", 1),
            ("down", "delivered", 2),
        }
        assert [len({call.id for call in endpoint.at(path)}) for path in ("/slow", "/down")] == [1, 1]
        assert [len(endpoint.at(path)) for path in ("/slow", "/down")] == [2, 2]


async def test_the_last_failure_and_a_host_that_is_not_named_are_dead_letters_that_can_be_put_back(
    settings: Settings, log: Log
) -> None:
    async with receiving() as endpoint:
        endpoint.answers["/never"] = answer(500)
        now_ms = int(time.time() * 1000)
        over = owed("over", f"{endpoint.url}/never?key=hidden", tries=30, failed_ms=now_ms - 24 * 3600_000)
        narrow = settings.model_copy(update={"webhook_hosts": "127.0.0.1, *.lab.example"})
        async with delivering(narrow):
            await log.write(over, owed("elsewhere", "http://169.254.169.254/latest/meta-data"))
            ends = await log.settled("over", "elsewhere")
            assert {end.task_id: end.outcome for end in ends} == {"over": "given_up", "elsewhere": "refused"}
    found = await letters(settings, 2)
    reasons = sorted(letter["reason"] for letter in found)
    assert reasons[0].startswith("not delivered to 127.0.0.1:")
    assert reasons[0].endswith(" after 31 attempts: it answered 500")
    assert reasons[1] == "not delivered to 169.254.169.254 after 1 attempt: POLAR_WEBHOOK_HOSTS doesn't name its host"
    assert "hidden" not in str(reasons)


async def test_a_worker_without_a_secret_names_the_setting(settings: Settings) -> None:
    settings.webhook_secret_path.unlink()
    with pytest.raises(NotReadyError, match="POLAR_WEBHOOK_SECRET_FILE"):
        await run_webhooks(settings, asyncio.Event())


async def first_hangs(nth: int) -> web.Response:
    return await hang(nth) if nth == 0 else web.Response(status=204)


async def committed(settings: Settings) -> int:
    """The group's offsets, summed."""
    asker = kafka.consumer(settings, group="webhooks")
    await asker.start()
    try:
        name = webhooks.TOPIC.full_name(settings.namespace)
        numbers = range(webhooks.TOPIC.embedded_partitions)
        return sum([await asker.committed(kafka.TopicPartition(name, number)) or 0 for number in numbers])
    finally:
        await kafka.stop(asker, 2)


@asynccontextmanager
async def process(settings: Settings) -> AsyncIterator[asyncio.subprocess.Process]:
    """`polar worker webhooks`; killed at the end if it still runs."""
    recorded = {"POLAR_KAFKA": settings.bootstrap, "POLAR_NAMESPACE": settings.namespace}
    write_env_file(settings.data / "polar.env", recorded)
    arguments = ["-m", "polar.cli", "worker", "webhooks", "--data", str(settings.data)]
    with (settings.data / "output").open("ab") as output:
        running = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=output, stderr=output)
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
