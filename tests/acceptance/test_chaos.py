"""Every kind of process and broker is killed and stopped at random: only time is lost. `make chaos` does it for longer.

The seed is printed, and taken from `POLAR_CHAOS_SEED` where that is set.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from polar.table import SessionTable
from tests.acceptance import chaos
from tests.acceptance.fleet import ROLES, fleet
from tests.waiting import eventually
from topics.types.session import Phase, Status
from topics.types.trajectory import Trajectory

SHORT_S = 40.0
SESSIONS = 32


@pytest.mark.timeout(900)
async def test_killing_and_stopping_every_kind_of_process_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("POLAR_CHAOS_SEED", random.SystemRandom().randrange(2**32)))
    print(f"POLAR_CHAOS_SEED={seed}")
    await chaos.run(tmp_path / "data", chaos.Scenario(SHORT_S, SESSIONS, seed), print)


@pytest.mark.timeout(240)
async def test_a_killed_run_worker_costs_one_attempt_and_leaves_nothing(tmp_path: Path) -> None:
    async with fleet(tmp_path / "data", [*(f"{role}-1" for role in ROLES), "run-2"]) as system:
        lost_worker, _ = await system.worker_id("run-1"), await system.worker_id("run-2")
        code, _, said = await system.polar("submit", "-", stdin=json.dumps(system.task("killed", 40, 8, pause_s=0.3)))
        assert code == 0, said
        async with SessionTable(system.settings) as table:
            rows = table.sessions["killed"]
            assert await table.until(lambda: all(s.phase is Phase.RUNNING for s in rows.values()), 60)
            lost = {s.sample_index for s in rows.values() if s.worker_id == lost_worker}
            assert lost
            sessions = {f"killed.{n}" for n in lost}
            # A claim is granted before its programs start.
            await eventually(lambda: sessions <= {each.session_id for each in system.leftovers()})
            await system.kill("run-1")
            killed_at = time.monotonic()
            # Long before their next attempts, which a lease must end for.
            await eventually(lambda: not [each for each in system.leftovers() if each.session_id in sessions])
            print(f"nothing of them lives {time.monotonic() - killed_at:.2f} s after the kill")
            assert await table.until(
                lambda: all(rows[n].attempt == 2 and rows[n].phase is Phase.RUNNING for n in lost), 60
            )
            print(f"all {len(lost)} run again {time.monotonic() - killed_at:.1f} s after the kill")
            assert await table.until(lambda: table.is_finished("killed"), 120)
            assert {n: s.spent for n, s in rows.items()} == {n: int(n in lost) for n in rows}
        assert {t.status for t in await system.outputs() if isinstance(t, Trajectory)} == {Status.COMPLETED}
        assert system.leftovers() == []
