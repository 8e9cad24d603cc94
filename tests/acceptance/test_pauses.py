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

from polar.fleet import Controls
from tests.acceptance.fleet import ROLES, fleet
from tests.acceptance.pausing import ENGINE, Pausing

SAMPLES = 6
CYCLES = 12


@pytest.mark.timeout(300)
async def test_updates_under_load_cost_no_harness_an_error_and_no_call_its_version(tmp_path: Path) -> None:
    seed = int(os.environ.get("POLAR_PAUSES_SEED", random.randrange(2**32)))
    print(f"POLAR_PAUSES_SEED={seed}")
    roles = [f"{role}-1" for role in ROLES]
    async with (
        fleet(tmp_path / "data", [*roles, "proxy-2"], *ENGINE) as system,
        Controls(system.settings) as controls,
    ):
        pausing = Pausing(system, controls, random.Random(seed))
        await pausing.begin(SAMPLES)
        for number in range(CYCLES):
            still = await pausing.cycle("abort" if number % 2 else "finish")
            assert len(still.proxies) == 2
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
