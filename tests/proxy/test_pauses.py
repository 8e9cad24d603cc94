"""Pauses of the fleet, as a proxy and its harnesses live through them. The engine is the scripted one, Kafka is real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest
from openai import AsyncOpenAI, RateLimitError
from openai.types.chat import ChatCompletionMessageParam

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Hang, Slow
from proxy.addresses import Binding
from proxy.app import Proxy
from proxy.dialects.base import dialects
from proxy.engines.pool import Engines
from tests.proxy.conftest import Bench, proxied
from tests.waiting import eventually
from topics import workers
from topics.environment.settings import EngineSettings
from topics.fleet import FleetState, PolicyVersion
from topics.log.follow import Follower, Since
from topics.types.completion import CallOutcome
from topics.types.last_call import PATH, LastCall
from topics.workers import Heartbeat, Sign

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


class Beats:
    """The newest heartbeat."""

    newest: Heartbeat | None = None

    def hear(self, sign: Sign, _: object) -> None:
        if isinstance(sign, Heartbeat):
            self.newest = sign

    def say(self, generation: int, calls: int) -> bool:
        return self.newest is not None and (self.newest.fleet_generation, self.newest.calls) == (generation, calls)


@pytest.fixture
async def beats(bench: Bench) -> AsyncIterator[Beats]:
    told = Beats()
    follower = Follower(bench.settings, workers.TOPIC, told.hear, since=Since.BEGINNING)
    await follower.start()
    yield told
    await follower.stop()


async def ask(client: AsyncOpenAI) -> str:
    return (await client.chat.completions.create(model="m", messages=HI)).id


async def test_a_pause_holds_new_calls_back_and_the_proxy_goes_on_taking_them_in(
    client: AsyncOpenAI, proxy: Proxy, bench: Bench, beats: Beats, http: aiohttp.ClientSession
) -> None:
    await bench.fleet(PolicyVersion(7))
    await bench.fleet(FleetState(1, paused=True))
    await eventually(lambda: beats.say(1, 0))
    call = asyncio.ensure_future(ask(client))
    done, _ = await asyncio.wait([call], timeout=0.3)
    assert not done
    async with http.get(proxy.control_url + "/readyz") as ready:
        assert ready.status == 200, "who balances load would send harnesses nowhere"
    await bench.fleet(FleetState(2))
    await call
    [recorded] = await bench.calls(1)
    assert recorded.policy_version == 7


async def test_a_call_that_was_held_for_too_long_is_told_so_and_on_the_log_and_no_fault_of_its_harness(
    client: AsyncOpenAI,
    proxy: Proxy,
    bench: Bench,
    beats: Beats,
    http: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.call.HELD_S", 0.2)
    await bench.fleet(FleetState(1, paused=True))
    await eventually(lambda: beats.say(1, 0))
    with pytest.raises(RateLimitError, match="paused for an update"):
        await ask(client)
    [recorded] = await bench.calls(1)
    assert recorded.outcome is CallOutcome.FAILED
    assert recorded.error is not None
    assert recorded.error.code == "paused"
    async with http.get(proxy.url + PATH, headers={"Authorization": f"Bearer {bench.key()}"}) as response:
        last = msgspec.json.decode(await response.read(), type=LastCall)
    assert last == LastCall(recorded.error), "its run worker would take the agent's reward (protocol 34)"


async def test_engines_are_told_to_keep_apart_what_other_weights_cached(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine, beats: Beats
) -> None:
    talk = HI.copy()

    async def turn() -> int:
        """Tokens of the prompt that the engine had in its cache."""
        said = await client.chat.completions.create(model="m", messages=talk)
        talk.append({"role": "assistant", "content": said.choices[0].message.content or ""})
        talk.append({"role": "user", "content": "go on, and tell me all that you know of it"})
        assert said.usage is not None
        assert said.usage.prompt_tokens_details is not None
        return said.usage.prompt_tokens_details.cached_tokens or 0

    await turn()
    cached = [await turn()]
    for version in (1, 2):
        await bench.fleet(FleetState(2 * version - 1, paused=True))
        await bench.fleet(PolicyVersion(version))
        await bench.fleet(FleetState(2 * version))
        await eventually(lambda: beats.say(2 * version, 0))  # noqa: B023 - it is called in this round alone
        cached += [await turn(), await turn()]
    assert [count > 0 for count in cached] == [True, False, True, False, True]
    salts = [call.parameters.get("cache_salt") for call in scripted.record.calls("t.0")]
    assert (salts[:2], salts[2::2] == salts[3::2], len(set(salts))) == ([None, None], True, 3)


async def test_a_call_that_may_finish_says_the_version_from_before_the_update_and_its_end_is_told_at_once(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine, beats: Beats
) -> None:
    await bench.fleet(PolicyVersion(1))
    await bench.fleet(FleetState(1))
    await eventually(lambda: beats.say(1, 0))  # else the call may begin before its proxy has heard of a version
    scripted.faults.add(Slow(delay_s=1.0))
    call = asyncio.ensure_future(ask(client))
    await eventually(lambda: not scripted.faults.pending())
    await bench.fleet(FleetState(2, paused=True))
    await eventually(lambda: beats.say(2, 1))
    await eventually(lambda: beats.say(2, 0))
    await bench.fleet(PolicyVersion(2))
    await bench.fleet(FleetState(3))
    await call
    await ask(client)
    assert [recorded.policy_version for recorded in await bench.calls(2)] == [1, 2]


async def test_an_aborted_call_is_ended_at_the_engine_and_asked_anew_and_the_harness_and_the_log_see_one(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine, beats: Beats
) -> None:
    await bench.fleet(PolicyVersion(1))
    scripted.faults.add(Slow(delay_s=600))
    call = asyncio.ensure_future(ask(client))
    await eventually(lambda: not scripted.faults.pending())
    await bench.fleet(FleetState(1, paused=True, in_flight="abort"))
    await eventually(lambda: beats.say(1, 0))
    await eventually(lambda: [said.outcome for said in scripted.record.calls("t.0")] == ["aborted"])
    await bench.fleet(PolicyVersion(2))
    await bench.fleet(FleetState(2))
    ids = [await call, await ask(client)]
    recorded = await bench.calls(2)
    assert [(one.call_id, one.outcome, one.policy_version) for one in recorded] == [
        (call_id, "answered", 2) for call_id in ids
    ]


async def test_a_harness_that_hangs_up_during_the_pause_is_not_asked_for(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine, beats: Beats
) -> None:
    scripted.faults.add(Hang())
    call = asyncio.ensure_future(ask(client))
    await eventually(lambda: not scripted.faults.pending())
    await bench.fleet(FleetState(1, paused=True, in_flight="abort"))
    await eventually(lambda: beats.say(1, 0))
    call.cancel()
    [recorded] = await bench.calls(1)
    assert (recorded.outcome, recorded.error and recorded.error.code) == ("abandoned", "hung_up")
    await bench.fleet(FleetState(2))
    await ask(client)
    assert len(scripted.record.calls("t.0")) == 1, "nobody waited for the first one"


async def test_calls_that_wait_for_their_turn_when_a_pause_comes_are_not_asked_in_it(
    bench: Bench, scripted: ScriptedEngine, engine_url: str, beats: Beats
) -> None:
    engines = Engines.of({"one": EngineSettings(urls=(engine_url,), model="polar-scripted", concurrency=1)})
    proxy = Proxy(bench.settings, engines, dialects(), Binding("127.0.0.1", 0), Binding("127.0.0.1", 0))
    scripted.faults.add(Slow(delay_s=1.0))
    try:
        await proxy.start()
        async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key=bench.key(), max_retries=0) as client:
            calls = [
                asyncio.ensure_future(client.chat.completions.create(model="m", messages=HI, seed=n)) for n in (1, 2, 3)
            ]
            await eventually(lambda: engines.default.admission.waiting == 2)
            await bench.fleet(FleetState(1, paused=True))
            await eventually(lambda: beats.say(1, 1))
            await eventually(lambda: beats.say(1, 0))
            done, held = await asyncio.wait(calls, timeout=0.5)
            assert (len(done), len(held), len(scripted.record.calls())) == (1, 2, 1)
            await bench.fleet(FleetState(2))
            await asyncio.gather(*calls)
    finally:
        await proxy.stop(drain_s=0.0)


async def test_a_proxy_that_starts_in_a_pause_is_paused(bench: Bench, engine_url: str) -> None:
    await bench.fleet(FleetState(3, paused=True))
    async with (
        proxied(bench, engine_url) as proxy,
        AsyncOpenAI(base_url=proxy.url + "/v1", api_key=bench.key(), max_retries=0) as client,
    ):
        call = asyncio.ensure_future(ask(client))
        done, _ = await asyncio.wait([call], timeout=0.5)
        assert not done
        await bench.fleet(FleetState(4))
        await call
