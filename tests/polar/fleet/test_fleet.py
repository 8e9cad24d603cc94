"""`Fleet` with one real proxy, the scripted engine and real Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from polar.fleet import Fleet, PausedByOtherError, PauseLostError, PauseReport, PauseTimeoutError
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Slow
from proxy.app import Proxy
from tests.proxy.conftest import Bench
from tests.waiting import eventually
from topics import workers
from topics.environment.settings import Settings
from topics.fleet import CODEC, TOPIC, FleetState
from topics.log import kafka as kafka_clients
from topics.log.owner import read_back
from topics.log.producer import LogProducer
from topics.types.errors import InputError, NotReadyError
from topics.workers import Heartbeat


@pytest.fixture
async def fleet(bench: Bench) -> AsyncIterator[Fleet]:
    async with Fleet(bench.settings) as fleet:
        yield fleet


async def ask(client: AsyncOpenAI, content: str = "hi") -> None:
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])


async def states(settings: Settings) -> list[FleetState]:
    """All that were ever written."""
    name = TOPIC.full_name(settings.namespace)
    records = [CODEC.decode(record.value or b"") async for record in read_back(settings, name, 0)]
    return [record for record in records if isinstance(record, FleetState)]


async def under_way(client: AsyncOpenAI, scripted: ScriptedEngine, seconds: float) -> asyncio.Task[None]:
    """A call that takes the engine so long, and has reached it."""
    scripted.faults.add(Slow(delay_s=seconds))
    call = asyncio.create_task(ask(client))
    await eventually(lambda: not scripted.faults.pending())
    return call


async def test_a_block_is_a_pause_and_what_is_published_in_it_is_what_calls_say_after_it(
    bench: Bench, fleet: Fleet, client: AsyncOpenAI, scripted: ScriptedEngine
) -> None:
    await fleet.publish(1)
    call = await under_way(client, scripted, 0.5)
    async with fleet.paused() as pause:
        assert len(scripted.record.calls()) == 1, "it was let finish"
        # Another request: an equal one would get the first one's answer while that one is on its way.
        held = asyncio.create_task(ask(client, "hi again"))
        await pause.publish(2)
        assert (pause.report.generation, len(pause.report.proxies)) == (1, 1)
        assert not held.done()
        during = await fleet.status()
    await asyncio.gather(call, held)
    assert [recorded.policy_version for recorded in await bench.calls(2)] == [1, 2]
    after = await fleet.status()
    assert (during.state.paused, during.versions) == (True, {None: 2})
    assert (after.state.paused, after.state.generation) == (False, 2)


async def test_a_number_that_is_used_again_after_a_rollback_is_another_publication(
    bench: Bench, fleet: Fleet, client: AsyncOpenAI
) -> None:
    publications = []
    for number, version in enumerate((5, 6, 5, 6)):
        async with fleet.paused() as pause:
            publications.append(await pause.publish(version, force=True))
        await ask(client, f"hi {number}")
    recorded = [(call.policy_version, call.publication) for call in await bench.calls(4)]
    assert recorded == [(each.version, each.offset) for each in publications]
    assert len(set(recorded)) == 4
    first, undone, back, newest = publications
    assert [newest.has_abandoned(each.version or 0, each.offset, "default") for each in publications] == [
        False,
        True,
        False,
        False,
    ]
    async with Fleet(bench.settings) as restarted:
        assert (await restarted.publish(7)).rollbacks == newest.rollbacks == back.rollbacks != first.rollbacks
        assert (await restarted.publish(7, "default")).has_abandoned(6, undone.offset, "default")


async def test_of_versions_published_at_once_each_publisher_gets_its_own(bench: Bench) -> None:
    async with Fleet(bench.settings) as one, Fleet(bench.settings) as two:
        for version in range(0, 20, 2):
            found = await asyncio.gather(one.publish(version, force=True), two.publish(version + 1, force=True))
            assert [each.version for each in found] == [version, version + 1]


async def test_calls_that_do_not_end_fail_the_pause_and_the_fleet_runs_again(
    fleet: Fleet, client: AsyncOpenAI, scripted: ScriptedEngine
) -> None:
    call = await under_way(client, scripted, 30.0)
    with pytest.raises(PauseTimeoutError, match=r"proxy-.* has 1 calls at engines\. Allow more time") as failed:
        await fleet.pause(deadline_s=0.8)
    assert len(failed.value.proxies) == 1
    assert not (await fleet.status()).state.paused
    report = await fleet.pause(in_flight="abort", deadline_s=10)
    assert report.took_s < 2
    assert not call.done()
    assert (await fleet.resume()).state.paused
    await call
    assert [said.outcome for said in scripted.record.calls()] == ["aborted", "completed"]


async def test_a_block_that_raises_ends_the_pause_and_nobody_claims_to_know_the_weights(
    fleet: Fleet, proxy: Proxy
) -> None:
    await fleet.publish(4)
    with pytest.raises(ZeroDivisionError):
        async with fleet.paused():
            1 / 0  # noqa: B018 - the update breaks off
    after = await fleet.status()
    assert (after.state.paused, after.versions) == (False, {None: None})
    await fleet.publish(5)

    async def update_and_fail() -> None:
        async with fleet.paused() as pause:
            await pause.publish(6)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await update_and_fail()
    assert (await fleet.status()).versions == {None: 6}


async def test_a_cancelled_pause_leaves_the_fleet_running(
    bench: Bench, fleet: Fleet, client: AsyncOpenAI, scripted: ScriptedEngine
) -> None:
    call = await under_way(client, scripted, 2.0)
    pausing = asyncio.create_task(fleet.pause())
    async with Fleet(bench.settings) as other:
        await eventually(lambda: _paused(other))
        pausing.cancel()
        await asyncio.wait([pausing])
        assert pausing.cancelled()
        assert not (await other.status()).state.paused
    await call


async def _paused(fleet: Fleet) -> bool:
    return (await fleet.status()).state.paused


async def test_a_second_client_is_refused_unless_it_takes_over_and_then_the_first_is_told(
    bench: Bench, proxy: Proxy
) -> None:
    async with Fleet(bench.settings) as first, Fleet(bench.settings) as second:

        async def pause_and_lose_it() -> None:
            async with first.paused() as pause:
                with pytest.raises(PausedByOtherError, match=rf"paused by {first.by} since 20.* \(generation 1\)"):
                    await second.pause()
                assert (await second.status()).state.by == first.by
                await second.pause(force=True)
                with pytest.raises(PauseLostError):
                    await pause.publish(1)

        with pytest.raises(PauseLostError, match=f"taken over by {second.by}"):
            await pause_and_lose_it()
        assert (await first.status()).state == FleetState(2, paused=True, by=second.by), "it is left alone"
        await second.end()
        with pytest.raises(PauseLostError, match="ended by"):
            async with first.paused():
                await second.resume()


async def test_of_clients_that_pause_at_the_same_moment_one_has_the_pause(bench: Bench, proxy: Proxy) -> None:
    async with (
        Fleet(bench.settings) as one,
        Fleet(bench.settings) as two,
        Fleet(bench.settings) as three,
    ):
        for _ in range(3):
            clients = [one, two, three]
            done = await asyncio.gather(*(each.pause() for each in clients), return_exceptions=True)
            [winner] = [each for each, result in zip(clients, done, strict=True) if isinstance(result, PauseReport)]
            assert sum(isinstance(result, PausedByOtherError) for result in done) == 2, done
            last = (await states(bench.settings))[-1]
            assert (last.paused, last.by) == (True, winner.by), "what compaction leaves is what counts"
            await winner.end()
            assert not (await states(bench.settings))[-1].paused


async def test_a_version_goes_forward_for_each_engine(fleet: Fleet) -> None:
    await fleet.publish(3)
    await fleet.publish(5, "small")
    with pytest.raises(InputError, match="version: engine large is at 3 already"):
        await fleet.publish(2, "large")
    with pytest.raises(InputError, match="engine small is at 5 already"):
        await fleet.publish(4)
    assert (await fleet.status()).versions == {None: 3, "small": 5}
    await fleet.publish(5)
    assert (await fleet.status()).versions == {None: 5}, "one for all is for all"
    for version in (-1, 2**63, 10**20):
        with pytest.raises(InputError, match="an integer from 0 to 9223372036854775807"):
            await fleet.publish(version)
    await fleet.publish(1, force=True)
    assert (await fleet.status()).versions == {None: 1}


@pytest.mark.parametrize("ahead_s", [0.0, 60.0])
async def test_a_proxy_that_died_is_waited_for_until_its_lease_has_ended(
    bench: Bench, fleet: Fleet, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """Its last heartbeat is all that is left of it, and seems old to a client whose clock is ahead of the broker's."""
    producer = LogProducer(bench.settings)
    await producer.start()
    dead = Heartbeat("proxy-dead", "proxy", "h", 1, address="http://h:1", calls=3)
    await producer.send(workers.TOPIC, dead, key=dead.worker_id)
    here = time.time
    monkeypatch.setattr(time, "time", lambda: here() + ahead_s)
    began = time.monotonic()
    report = await fleet.pause(deadline_s=20)
    assert 4 < time.monotonic() - began < 12
    assert report.proxies == tuple(name for name in report.proxies if name != "proxy-dead")
    await producer.stop()


async def test_without_kafka_it_is_said_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises((NotReadyError, kafka_clients.KafkaError)):
        async with Fleet(Settings(kafka="127.0.0.1:1", data=tmp_path)):
            pass
    assert time.monotonic() - began < 10
