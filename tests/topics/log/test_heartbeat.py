"""Hearts on a real broker: when they beat, and when they must not."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.topics.conftest import Apply
from tests.waiting import eventually
from topics import workers
from topics.environment.settings import Settings
from topics.log import heartbeat
from topics.log.follow import Follower, Since
from topics.log.heartbeat import HeartbeatSender, new_worker_id
from topics.log.kafka import Record
from topics.log.liveness import LEASE_MS
from topics.workers import Heartbeat


class Monitor:
    """The beats on `polar.workers`: generation, and the broker's time in seconds."""

    def __init__(self, settings: Settings) -> None:
        self.beats: list[tuple[int, float]] = []
        self.follower = Follower(settings, workers.TOPIC, self._on_beat, since=Since.END)

    def _on_beat(self, beat: Heartbeat, record: Record) -> None:
        self.beats.append((beat.fleet_generation, record.timestamp / 1000))

    async def until(self, generation: int, deadline_s: float = 10) -> None:
        """Return when a beat of that generation was seen."""
        await eventually(lambda: generation in [seen for seen, _ in self.beats], deadline_s)


@pytest.fixture
async def monitor(settings: Settings, apply: Apply) -> AsyncIterator[Monitor]:
    await apply(workers.TOPIC)
    made = Monitor(settings)
    await made.follower.start()
    yield made
    await made.follower.stop()


class Process:
    """A process whose state is its generation."""

    def __init__(self, settings: Settings) -> None:
        self.generation = 0
        self.heart = HeartbeatSender(settings, self._beat)

    def _beat(self) -> Heartbeat:
        return HeartbeatSender.heartbeat("w1", "worker", fleet_generation=self.generation)

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """From the first beat on."""
        self.heart.start()
        await self.heart.first_beat(10)
        yield
        self.heart.stop()


@pytest.fixture
def process(settings: Settings) -> Process:
    return Process(settings)


async def test_the_first_beat_leaves_at_once_and_connects(process: Process, monitor: Monitor) -> None:
    was_connected = process.heart.connected
    async with process.beating():
        assert (was_connected, process.heart.connected) == (False, True)
        await monitor.follower.caught_up(10)
        assert monitor.beats[0][0] == 0


async def test_a_change_is_told_at_once(process: Process, monitor: Monitor) -> None:
    async with process.beating():
        process.generation = 1
        process.heart.changed()
        await monitor.until(1, deadline_s=heartbeat.INTERVAL_S / 2)


async def test_many_changes_are_told_ten_times_a_second_and_the_last_one_always(
    process: Process, monitor: Monitor
) -> None:
    async with process.beating():
        began = time.monotonic()
        for generation in range(1, 101):
            process.generation = generation
            process.heart.changed()
            await asyncio.sleep(0.003)
        await monitor.until(100)
        # One for each tenth of a second, the first, and the last.
        assert len(monitor.beats) <= (time.monotonic() - began) * 10 + 2


async def test_without_changes_it_beats_by_itself(
    process: Process, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.15)
    async with process.beating():
        process.generation = 1
        await monitor.until(1)
        process.generation = 2
        await monitor.until(2)


async def test_a_busy_main_loop_is_no_reason_to_be_silent_but_a_hung_one_is(
    process: Process, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.2)
    monkeypatch.setattr(heartbeat, "TICK_S", 0.05)
    monkeypatch.setattr(heartbeat, "HUNG_S", 1.0)
    async with process.beating():
        hung_from = time.time()
        time.sleep(2.5)  # noqa: ASYNC251 - the main loop hangs
        hung_to = time.time()
        process.generation = 1
        await monitor.until(1)
        during = [at - hung_from for _, at in monitor.beats if hung_from + 0.1 < at < hung_to]
        assert len(during) >= 2, "the last beat was repeated while the loop was busy"
        assert max(during) < 1.6, "and no longer when it had hung for a second"


async def test_the_last_beat_tells_the_state_at_the_stop(process: Process, monitor: Monitor) -> None:
    process.heart.start()
    await process.heart.first_beat(10)
    process.generation = 7
    process.heart.stop()
    await monitor.follower.caught_up(10)
    assert monitor.beats[-1][0] == 7
    process.heart.changed()
    process.heart.stop()


async def test_a_heart_that_never_started_stops(process: Process) -> None:
    process.heart.changed()
    process.heart.stop()


def test_a_host_s_processes_beat_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def next_beat(now: float) -> float:
        monkeypatch.setattr("topics.log.heartbeat.time.time", lambda: now)
        return now + heartbeat._until_next_s()

    first = next_beat(1_000_000.0)
    moments = [next_beat(first + fraction * heartbeat.INTERVAL_S) for fraction in (0.01, 0.3, 0.99)]
    assert moments == pytest.approx([first + heartbeat.INTERVAL_S] * 3)
    monkeypatch.setattr("topics.log.heartbeat.socket.gethostname", lambda: "another")
    assert abs(next_beat(1_000_000.0) - first) > 0.01


def test_a_lease_outlasts_three_heartbeats_and_ends_a_hung_process() -> None:
    assert 3 * heartbeat.INTERVAL_S * 1000 <= LEASE_MS
    assert heartbeat.HUNG_S * 1000 < LEASE_MS


def test_worker_ids_tell_role_and_process_start() -> None:
    first, second = new_worker_id("proxy"), new_worker_id("proxy")
    assert first.startswith("proxy-")
    assert first != second
