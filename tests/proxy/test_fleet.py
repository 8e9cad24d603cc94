"""The fleet's state as a proxy keeps it: who waits, who is ended, and which version a call may say."""

from __future__ import annotations

import asyncio
import itertools
import re

import pytest

from proxy.errors import RefusalError
from proxy.fleet import EngineCall, Fleet, FleetPausedError
from tests.waiting import eventually
from topics.fleet import FleetState, PolicyVersion

offsets = itertools.count()
"""Of records, as they come."""


class RefusalBody:
    """A fleet, and how often its heartbeat had news."""

    def __init__(self) -> None:
        self.news = 0
        self.fleet = Fleet(self._count)

    def _count(self) -> None:
        self.news += 1


async def sampled(fleet: Fleet, *meanwhile: FleetState | PolicyVersion, engine: str = "default") -> int | None:
    """The proven version of a call under which these records came."""
    async with fleet.call(engine) as call:
        for record in meanwhile:
            fleet.apply(record, next(offsets), 0)
    return call.proven and call.proven.version


@pytest.mark.parametrize(
    ("meanwhile", "told"),
    [
        ([], 7),
        ([FleetState(2, paused=True)], 7),
        ([FleetState(2, draining=True)], 7),
        ([FleetState(2, paused=True), FleetState(3, paused=True)], 7),
        ([FleetState(2, paused=True), FleetState(3)], None),
        ([FleetState(3)], None),
        ([PolicyVersion(8)], None),
        ([PolicyVersion(7)], None),
        ([PolicyVersion(8, "other")], 7),
        ([PolicyVersion(8, "default")], None),
    ],
    ids=str,
)
async def test_a_call_says_its_version_only_where_the_weights_cannot_have_changed_under_it(
    meanwhile: list[FleetState | PolicyVersion], told: int | None
) -> None:
    fleet = RefusalBody().fleet
    fleet.apply(FleetState(1), next(offsets), 0)
    fleet.apply(PolicyVersion(7), next(offsets), 0)
    assert await sampled(fleet, *meanwhile) == told


async def test_an_engine_has_its_own_version_until_one_is_published_for_all() -> None:
    fleet = RefusalBody().fleet
    assert await sampled(fleet) is None
    fleet.apply(PolicyVersion(3, "small"), next(offsets), 0)
    assert (await sampled(fleet), await sampled(fleet, engine="small")) == (None, 3)
    fleet.apply(PolicyVersion(4), next(offsets), 0)
    assert (await sampled(fleet), await sampled(fleet, engine="small")) == (4, 4)
    fleet.apply(PolicyVersion(None), next(offsets), 0)
    assert await sampled(fleet) is None


async def test_no_two_publications_salt_an_engines_cache_alike_and_without_one_there_is_no_salt() -> None:
    """One of unknown weights counts, too: they are not those before it."""
    fleet = RefusalBody().fleet
    async with fleet.call("a") as call:
        assert call.salt is None
    salts = []
    published = (7, 8, None, 7, None)
    for record in (*map(PolicyVersion, published), PolicyVersion(7, "a")):
        fleet.apply(record, next(offsets), 0)
        async with fleet.call("a") as call:
            salts.append(call.salt)
    assert None not in salts
    assert len(set(salts)) == len(salts) == 6
    assert all(re.fullmatch(r"[\w.-]{1,128}", salt or "") for salt in salts), "what vLLM takes as a salt"


async def test_all_proxies_salt_alike_whatever_records_compaction_has_left_them() -> None:
    salts = set()
    logs: list[list[tuple[FleetState | PolicyVersion, int]]] = [
        [(PolicyVersion(6), 3), (FleetState(9), 4), (PolicyVersion(7), 5)],
        [(PolicyVersion(7), 5)],
    ]
    for seen in logs:
        fleet = RefusalBody().fleet
        for record, offset in seen:
            fleet.apply(record, offset, 0)
        salts.add(fleet.weights("a").salt)
    assert len(salts) == 1


async def test_a_call_that_waited_out_a_pause_is_salted_with_the_weights_that_it_reaches() -> None:
    fleet = RefusalBody().fleet
    fleet.apply(PolicyVersion(1), 0, 0)
    call = fleet.call("a")
    fleet.apply(FleetState(1, paused=True), 1, 0)
    fleet.apply(PolicyVersion(2), 2, 0)
    fleet.apply(FleetState(2), 3, 0)
    async with call:
        assert call.salt == fleet.weights("a").salt


async def test_in_a_pause_no_call_begins_and_the_last_one_to_end_is_news() -> None:
    told = RefusalBody()
    fleet = told.fleet
    async with fleet.call("a"):
        async with fleet.call("a"):
            fleet.apply(FleetState(1, paused=True), next(offsets), 0)
            assert (fleet.calls, fleet.generation, told.news) == (2, 1, 1)
        assert (fleet.calls, told.news) == (1, 1)
        with pytest.raises(FleetPausedError):
            async with fleet.call("a"):
                raise AssertionError("it began")
        assert (fleet.calls, told.news) == (1, 1)
    assert (fleet.calls, told.news) == (0, 2)


@pytest.mark.parametrize(
    ("first", "later"),
    [(FleetState(5), FleetState(4, paused=True)), (FleetState(5, paused=True, by="a"), FleetState(5, by="b"))],
    ids=["older", "of the same"],
)
def test_a_record_of_no_newer_generation_changes_nothing(first: FleetState, later: FleetState) -> None:
    fleet = RefusalBody().fleet
    fleet.apply(first, next(offsets), 0)
    fleet.apply(later, next(offsets), 0)
    assert (fleet.generation, fleet.paused) == (5, first.paused)


async def test_a_call_is_held_until_the_fleet_runs_and_no_longer_than_it_may() -> None:
    fleet = RefusalBody().fleet
    now = asyncio.get_running_loop().time
    assert not await fleet.runs(now() + 5)
    fleet.apply(FleetState(1, paused=True), next(offsets), 0)
    with pytest.raises(RefusalError, match="paused"):
        await fleet.runs(now() + 0.05)
    held = asyncio.create_task(fleet.runs(now() + 5))
    await asyncio.sleep(0)
    fleet.apply(FleetState(2), next(offsets), 0)
    assert await held


class Asking:
    """A call that asks until no pause ends it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.tries = 0
        self.at_engine = asyncio.Event()
        self.answer = asyncio.Event()

    async def run(self) -> EngineCall:
        while True:
            await self.fleet.runs(asyncio.get_running_loop().time() + 5)
            call = self.fleet.call("default")
            try:
                async with call:
                    self.tries += 1
                    self.at_engine.set()
                    await self.answer.wait()
                return call
            except FleetPausedError:
                self.at_engine.clear()


async def test_a_pause_that_aborts_ends_calls_which_are_asked_anew_after_it() -> None:
    told = RefusalBody()
    told.fleet.apply(PolicyVersion(1), next(offsets), 0)
    asking = Asking(told.fleet)
    running = asyncio.create_task(asking.run())
    await asking.at_engine.wait()
    told.fleet.apply(FleetState(1, paused=True, in_flight="abort"), next(offsets), 0)
    await eventually(lambda: told.fleet.calls == 0, 5, every_s=0)
    assert not running.done()
    told.fleet.apply(PolicyVersion(2), next(offsets), 0)
    told.fleet.apply(FleetState(2), next(offsets), 0)
    async with asyncio.timeout(5):
        await asking.at_engine.wait()
    asking.answer.set()
    call = await running
    assert (call.proven and call.proven.version, asking.tries) == (2, 2)
    assert (call.publication_of(1), call.publication_of(2)) == (None, call.proven), "of its last try"


async def test_a_second_word_to_abort_does_no_harm_while_a_call_is_being_ended() -> None:
    fleet = RefusalBody().fleet
    clears_up = asyncio.Event()

    async def slow_to_end() -> None:
        async with fleet.call("default"):
            try:
                await asyncio.Event().wait()
            finally:
                await clears_up.wait()

    running = asyncio.create_task(slow_to_end())
    await eventually(lambda: fleet.calls == 1, 5, every_s=0)
    fleet.apply(FleetState(1, paused=True), next(offsets), 0)
    for generation in (2, 3):
        fleet.apply(FleetState(generation, paused=True, in_flight="abort"), next(offsets), 0)
        await asyncio.sleep(0.01)
    assert fleet.calls == 1, "it is at the engine until it is cleared up"
    clears_up.set()
    with pytest.raises(FleetPausedError):
        await running


async def test_who_ends_a_call_for_good_is_heard_over_a_pause() -> None:
    fleet = RefusalBody().fleet
    asking = Asking(fleet)
    running = asyncio.create_task(asking.run())
    await asking.at_engine.wait()
    fleet.apply(FleetState(1, paused=True, in_flight="abort"), next(offsets), 0)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
