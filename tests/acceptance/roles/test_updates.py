"""Weights change in the middle of sessions: each token's version is the one that the engine wrote down of it, and nothing is lost.

The engine is the scripted one, asked by tokens: its weights have names and no influence, its record is the truth. All else is real.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

import polar
from polar.scripted.record import Sampled
from polar.table import SessionTable
from polar.trainer.groups import Group
from polar.trainer.rows import grpo
from polar.trainer.staleness import Staleness
from tests.acceptance.fleet import ROLES, Fleet, fleet
from topics.types.completion import CallOutcome, Completion
from topics.types.session import Status
from topics.types.trajectory import Trajectory

SAMPLES = 4
TURNS = 60
UPDATES = 9
SLOW = ("--fault", '{"kind": "slow", "delay_s": 0.25, "times": 1000000}')
"""Each call takes so long: some are under way at every update."""
RUN_S = 120.0

Tokens = dict[int, int]
"""Version by position in a conversation."""


@pytest.mark.hard
@pytest.mark.timeout(400)
async def test_each_token_says_the_weights_that_sampled_it_and_nothing_is_lost(tmp_path: Path) -> None:
    roles = [f"{role}-1" for role in ROLES]
    async with (
        fleet(tmp_path / "data", roles, *SLOW, mode="tokens") as system,
        polar.Fleet(system.settings) as controls,
        aiohttp.ClientSession(system.engine_url) as engine,
    ):
        await named(engine, 0)
        await controls.publish(0)
        task = json.dumps(system.task("talk", TURNS, SAMPLES))
        code, _, said = await system.polar("submit", "-", stdin=task)
        assert code == 0, said
        await first_answers(system)
        for version in range(1, UPDATES + 1):
            await update(controls, engine, version)
            await answered_with(system, version + 1)
        async with SessionTable(system.settings, {"talk"}) as table:
            assert await table.until(lambda: table.is_finished("talk"), RUN_S), table.sessions
            ended = table.ended("talk")
        assert {(row.status, row.attempt, row.spent) for row in ended} == {(Status.COMPLETED, 1, 0)}
        await check(system)


async def update(controls: polar.Fleet, engine: aiohttp.ClientSession, version: int) -> None:
    """In each of the ways that there are: calls finish before it, are asked anew after it, or are sampled on by the new weights."""
    if version % 3 == 0:
        await named(engine, version)
        await controls.publish(version)
        return
    async with controls.paused(in_flight="finish" if version % 3 == 1 else "abort") as pause:
        await named(engine, version)
        await pause.publish(version)


async def named(engine: aiohttp.ClientSession, version: int) -> None:
    async with engine.post("/update_weight_version", json={"new_version": str(version)}) as response:
        assert response.status == 200, await response.text()


async def first_answers(system: Fleet) -> None:
    """Returns when every session has one."""
    async with asyncio.timeout(RUN_S):
        while len({call["session_id"] for call in system.answered()}) < SAMPLES:
            await asyncio.sleep(0.1)


async def answered_with(system: Fleet, salts: int) -> None:
    """Returns when calls of so many cache salts, one a publication, have completed."""
    async with asyncio.timeout(RUN_S):
        while len(salts_of(system)) < salts:
            await asyncio.sleep(0.1)


def salts_of(system: Fleet) -> set[str]:
    return {call.parameters["cache_salt"] for call in system.sampled() if call.outcome == "completed"}


async def check(system: Fleet) -> None:
    """What the harnesses saw, the log, the trajectories and the trainer's rows against the engine's record."""
    calls = [call for call in await system.calls() if isinstance(call, Completion)]
    assert {call.outcome for call in calls} == {CallOutcome.ANSWERED}
    assert Counter(call["call_id"] for call in system.answered()) == Counter(call.call_id for call in calls)
    assert len(calls) == SAMPLES * TURNS
    trajectories = [one for one in await system.outputs() if isinstance(one, Trajectory)]
    assert len(trajectories) == SAMPLES
    wanted = {one.session_id: truth(system.sampled(one.session_id)) for one in trajectories}
    for one in trajectories:
        [trace] = one.expanded()
        told = {at: span.policy_version for span in trace.spans for at in range(span.start, span.end)}
        assert told == wanted[one.session_id]
        assert len(set(told.values())) > UPDATES / 2, "few updates fell into the session"
    parted = [call for call in calls if call.policy_spans]
    assert parted, "no call was under way at an update that let it go on"
    assert all(call.policy_version == call.policy_spans[0].version for call in parted)
    assert len(salts_of(system)) == UPDATES + 1
    check_staleness(trajectories, wanted)


def truth(sampled: list[Sampled]) -> Tokens:
    """Of a conversation whose prompts repeat what was sampled: what the engine says of each token in its place."""
    # Of two answers to one prompt the last counts: the first was ready as a pause ended its call.
    counting = {len(call.prompt_token_ids): call for call in sampled if call.outcome == "completed"}
    return {
        start + at: int(span.version)
        for start, call in counting.items()
        for span in call.weight_versions
        for at in range(span.start, span.end)
    }


def check_staleness(trajectories: list[Trajectory], wanted: dict[str, Tokens]) -> None:
    """A trainer that takes what is at most two versions old trains those tokens and no others."""
    oldest = UPDATES - 2
    counts: Counter[str] = Counter()
    kept = Staleness(lambda: UPDATES, 2, drop="token")(Group("talk", trajectories), counts)
    assert kept is not None
    fresh = {session: {at for at, version in told.items() if version >= oldest} for session, told in wanted.items()}
    assert {row.session_id: {*row.loss_mask.nonzero()[0].tolist()} for row in grpo(kept)} == fresh
    assert counts == {"stale_token": sum(map(len, wanted.values())) - sum(map(len, fresh.values()))}
