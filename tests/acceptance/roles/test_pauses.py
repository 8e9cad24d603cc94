"""Updates under load: harnesses notice nothing, and every call says the version that sampled it.

The seed is printed, and taken from `POLAR_PAUSES_SEED` where that is set.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path

import pytest

import polar
from polar.table import SessionTable
from tests.acceptance.fleet import ROLES, fleet
from tests.acceptance.roles.pausing import ENGINE, Pausing
from topics.types.session import Phase

SAMPLES = 6
CYCLES = 6


@pytest.mark.hard
@pytest.mark.timeout(600)
async def test_updates_under_load_cost_no_harness_an_error_and_no_call_its_version(tmp_path: Path) -> None:
    seed = int(os.environ.get("POLAR_PAUSES_SEED", random.randrange(2**32)))
    print(f"POLAR_PAUSES_SEED={seed}")
    roles = [f"{role}-1" for role in ROLES]
    async with (
        fleet(tmp_path / "data", [*roles, "proxy-2"], *ENGINE) as system,
        polar.Fleet(system.settings) as controls,
    ):
        pausing = Pausing(system, controls, random.Random(seed))
        await pausing.begin(SAMPLES)
        for number in range(CYCLES):
            report = await pausing.cycle("abort" if number % 2 else "finish")
            assert len(report.proxies) == 2
        # Started in mid-pause, and killed in mid-pause with calls at the engine.
        async with controls.paused(in_flight="abort"):
            await system.start_proxy("proxy-3")
            code, said, _ = await system.polar("fleet", "status", "--format", "json")
            told = json.loads(said)
            proxies = [one for one in told["processes"] if one["role"] == "proxy"]
            assert (code, told["paused"], {one["generation"] for one in proxies}) == (0, True, {told["generation"]})
            assert sum(one["calls"] for one in proxies) == 0
        assert len((await pausing.cycle("finish")).proxies) == 3
        pause = asyncio.create_task(pausing.cycle("finish"))
        await system.kill("proxy-2")
        assert len((await pause).proxies) in (2, 3), "it was still before, or its lease has ended"
        assert len((await pausing.cycle("abort")).proxies) == 2
        await pausing.end()
        assert await pausing.check(some_asked_twice=True) > SAMPLES * CYCLES / 2


@pytest.mark.hard
@pytest.mark.timeout(600)
async def test_a_drained_fleet_has_nothing_in_hand_and_goes_on_where_it_was(tmp_path: Path) -> None:
    roles = [f"{role}-1" for role in ROLES]
    async with (
        fleet(tmp_path / "data", [*roles, "proxy-2"], *ENGINE) as system,
        polar.Fleet(system.settings) as controls,
    ):
        pausing = Pausing(system, controls, random.Random(0))
        await pausing.begin(2)
        draining = asyncio.create_task(system.polar("fleet", "drain", "--timeout", "120"))
        async with asyncio.timeout(60):
            while not (await controls.status()).state.draining:
                await asyncio.sleep(0.1)
        agent = {"harness": "shell", "custom_shell": {"command": "true"}}
        code, _, said = await system.polar(
            "submit", "-", stdin=json.dumps({"task_id": "later", "instruction": "wait", "agent": agent})
        )
        assert code == 0, said
        assert not draining.done(), "sessions are in hand"
        pausing.tell_to_end()
        code, _, said = await draining
        assert code == 0, said
        async with SessionTable(system.settings) as table:
            phases = {name: {row.phase for row in rows.values()} for name, rows in table.sessions.items()}
            assert phases == {"talk": {Phase.RAN}, "later": {Phase.QUEUED}}
            assert (await system.polar("fleet", "resume"))[0] == 0
            assert await table.until(lambda: table.is_finished("later"), 60)
        await pausing.end()
        # Told by name a proxy ends; the other serves what comes.
        first, _ = (await pausing.cycle("finish")).proxies
        assert (await system.polar("fleet", "drain", first, "--timeout", "60"))[0] == 0
        assert first not in (await pausing.cycle("finish")).proxies
