"""Tokens mode through the proxy: in each dialect a conversation that only grows is one trace, whatever its template makes of it.

The engine is the scripted one with every drift, a real Kafka holds the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from polar.scripted.app import running
from polar.scripted.drift import Drift
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Slow
from polar.scripted.scripts import Script, ScriptTurn, Variant
from proxy.addresses import Binding
from proxy.app import Proxy
from proxy.dialects.base import dialects
from proxy.engines.pool import Engines
from proxy.session_key import KEY_HEADER
from tests.proxy.conftest import Bench
from tests.proxy.talks import DIALECTS, Talk
from tests.waiting import eventually
from topics.completions import Build
from topics.environment import blob_store
from topics.environment.settings import EngineSettings
from topics.types.completion import Completion, ReplayField
from topics.types.replay import decode_experts
from topics.types.session import Status as SessionStatus
from topics.types.tokens import unpack_ids

TURNS = 6
SAID = tuple(ScriptTurn(f"This is the answer of turn {n}.", f"What was asked in turn {n}?") for n in range(TURNS))


def drifting() -> ScriptedEngine:
    return ScriptedEngine([Script("s", "", (Variant(SAID),))], drifts=frozenset(Drift))


@asynccontextmanager
async def proxied(
    bench: Bench, url: str, mode: str, capture: frozenset[ReplayField] = frozenset()
) -> AsyncIterator[Proxy]:
    told = EngineSettings(urls=(url,), model="polar-scripted", mode=mode, capture=capture)
    settings = bench.settings.model_copy(update={"engines": {"default": told}})
    local = Binding("127.0.0.1", 0)
    proxy = Proxy(settings, Engines.of(settings.engines, deadline_s=10.0), dialects(), local, local)
    try:
        await proxy.start()
        yield proxy
    finally:
        await proxy.stop(drain_s=0.0)


def traces_of(calls: list[Completion]) -> list[tuple[int, int]]:
    """Of each trace, longest first: its calls, and its trainable tokens."""
    told = Build("t.0", "t", 0, 1, 1, "c1", SessionStatus.COMPLETED, "prefix_merging", b"{}", "shell")
    trajectory = PrefixMerging().build(BuiltFrom(told, calls, frozenset()))
    found = [(len(trace.spans), int(sum(trace.loss_mask))) for trace in trajectory.expanded()]
    return sorted(found, reverse=True)


def sampled(calls: list[Completion]) -> int:
    return sum(len(unpack_ids(call.sampled)) for call in calls)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_conversation_under_drift_is_one_trace(bench: Bench, http: aiohttp.ClientSession, dialect: str) -> None:
    async with running(drifting()) as url, proxied(bench, url, "tokens") as proxy:
        talk = Talk(http, bench.key(), dialect)
        for turn in range(TURNS):
            await talk.say(proxy.url, f"and turn {turn}")
    calls = await bench.calls(TURNS)
    assert traces_of(calls) == [(TURNS, sampled(calls))]
    assert [call.realigned > 0 for call in calls] == [False] + [True] * (TURNS - 1)


async def test_in_chat_mode_the_same_conversation_is_a_trace_a_call(bench: Bench, http: aiohttp.ClientSession) -> None:
    async with running(drifting()) as url, proxied(bench, url, "chat") as proxy:
        talk = Talk(http, bench.key(), "openai_chat")
        for turn in range(TURNS):
            await talk.say(proxy.url, f"and turn {turn}")
    assert len(traces_of(await bench.calls(TURNS))) == TURNS


async def test_another_proxy_goes_on_from_the_tokens_of_the_log(bench: Bench, http: aiohttp.ClientSession) -> None:
    key = bench.key("t.0", "c1", issued_at=1, **await bench.open())
    talk = Talk(http, key, "openai_chat")
    async with running(drifting()) as url:
        for turn in range(3):
            async with proxied(bench, url, "tokens") as proxy:
                await talk.say(proxy.url, f"and turn {turn}")
                await talk.say(proxy.url, f"and more of turn {turn}")
    calls = await bench.calls(TURNS)
    assert traces_of(calls) == [(TURNS, sampled(calls))]


async def test_what_is_captured_is_in_the_store_and_another_proxy_asks_only_for_new_rows(
    bench: Bench, http: aiohttp.ClientSession
) -> None:
    captured: frozenset[ReplayField] = frozenset({"routed_experts"})
    scripted = ScriptedEngine([Script("s", "", (Variant(SAID),))], drifts=frozenset(Drift), returns=captured)
    talk = Talk(http, bench.key("t.0", "c1", issued_at=1, **await bench.open()), "openai_chat")
    async with running(scripted) as url:
        for turn in range(2):
            async with proxied(bench, url, "tokens", capture=captured) as proxy:
                await talk.say(proxy.url, f"and turn {turn}")
    calls = await bench.calls(2)
    first, second = [decode_experts(blob_store.of(bench.settings).get(str(call.routed_experts))) for call in calls]
    assert (first.start, first.base) == (0, None)
    assert (second.start, second.base) == (len(first.experts), calls[0].call_id)


async def test_a_harness_that_hangs_up_ends_the_call_at_the_engine(bench: Bench, http: aiohttp.ClientSession) -> None:
    scripted = drifting()
    scripted.faults.add(Slow(delay_s=60.0))
    async with running(scripted) as url, proxied(bench, url, "tokens") as proxy:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        asked = asyncio.create_task(
            http.post(proxy.url + "/v1/chat/completions", headers={KEY_HEADER: bench.key()}, json=body)
        )
        await eventually(lambda: not scripted.faults.pending())
        asked.cancel()
        await eventually(lambda: [call.outcome for call in scripted.record.calls()] == ["aborted"])
