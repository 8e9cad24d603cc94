"""A minute without Kafka costs time only."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from polar.table import SessionTable
from tests.acceptance.fleet import ROLES, fleet
from topics.types.completion import Completion
from topics.types.session import Phase, Status


@pytest.mark.timeout(300)
async def test_a_minute_without_kafka_costs_no_attempt_and_no_answered_call(tmp_path: Path) -> None:
    async with fleet(tmp_path / "data", [f"{role}-1" for role in ROLES]) as system:
        task = system.task("outage", 12, 4, pause_s=0.5)
        code, _, said = await system.polar("submit", "-", stdin=json.dumps(task))
        assert code == 0, said
        async with SessionTable(system.settings) as table:
            rows = table.sessions["outage"]
            assert await table.until(lambda: all(s.phase is Phase.RUNNING for s in rows.values()), 60)
            await asyncio.to_thread(system.broker.kill)
            await asyncio.sleep(60)
            await asyncio.to_thread(system.broker.start)
            assert await table.until(lambda: table.is_finished("outage"), 120)
            assert {(s.attempt, s.spent, s.status) for s in rows.values()} == {(1, 0, Status.COMPLETED)}
        logged = Counter(call.call_id for call in await system.calls() if isinstance(call, Completion))
        seen = [answer["call_id"] for answer in system.answered()]
        assert len(seen) == 4 * 12
        assert {call_id: logged[call_id] for call_id in seen} == dict.fromkeys(seen, 1)
