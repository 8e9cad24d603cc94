"""Every kind of process is killed with -9, and some are stopped for longer than their lease: only time is lost.

The seed is printed, and taken from `POLAR_CHAOS_SEED` where that is set.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polar.client import SessionTable
from polar.types.completion import Completion
from polar.types.session import Phase, Status
from polar.types.trajectory import GroupFinished, Trajectory, expand
from tests.acceptance.fleet import ROLES, Fleet, fleet

TASKS = 5
SAMPLES = 8
TURNS = 6
STOPPED_S = 9.0
"""Longer than a lease (6 s), a group session (6 s) and a transaction (5 s)."""
SUBMITTED_S = 120.0
SETTLED_S = 200.0


async def kill_and_restart(system: Fleet, victim: str) -> None:
    if victim == "broker":
        await asyncio.to_thread(system.broker.kill)
        await asyncio.to_thread(system.broker.start)
    elif victim == "proxy":
        await system.kill("proxy")
        await system.start_proxy()
    else:
        await system.kill(victim)
        await system.start(victim)


async def stop_and_resume(system: Fleet, victim: str) -> None:
    system.signal(victim, signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    system.signal(victim, signal.SIGCONT)


async def submit(system: Fleet, task: dict[str, Any]) -> None:
    """Until Kafka takes it: submitting again is safe."""
    async with asyncio.timeout(SUBMITTED_S):
        while True:
            code, _, said = await system.polar("submit", "-", stdin=json.dumps(task))
            if code == 0:
                return
            assert code == 3, said


async def torment(system: Fleet, chance: random.Random) -> list[str]:
    """Each kind killed once, three stopped beside that, in random order; what was done."""
    kills = [f"{role}-1" for role in ROLES] + ["proxy", "broker"]
    chance.shuffle(kills)
    stops = ["run-2", "coordinator-2", "builder-2"]
    chance.shuffle(stops)
    done = [f"stop {name}" for name in stops] + [f"kill {name}" for name in kills]

    async def stop_all() -> None:
        for victim in stops:
            await asyncio.sleep(chance.uniform(0.5, 2))
            await stop_and_resume(system, victim)

    async def kill_all() -> None:
        for victim in kills:
            await asyncio.sleep(chance.uniform(0.5, 3))
            await kill_and_restart(system, victim)

    await asyncio.gather(stop_all(), kill_all())
    return done


def check_tokens(system: Fleet, trajectory: Trajectory) -> None:
    """Each trained span is what the engine sampled for that session, ids and logprobs, in some call."""
    sampled = {tuple(call.token_ids): call.logprobs for call in system.sampled(trajectory.session_id)}
    spans: Counter[str] = Counter()
    for trace in trajectory.traces:
        written = expand(trajectory, trace)
        by_call: dict[str, list[tuple[int, int]]] = {}
        for span in written.spans:
            by_call.setdefault(span.call.call_id, []).append((span.start, span.end))
        for call_id, pieces in by_call.items():
            ids = tuple(int(t) for start, end in pieces for t in written.token_ids[start:end])
            logprobs = np.concatenate([written.logprobs[start:end] for start, end in pieces])
            assert ids in sampled, (trajectory.session_id, call_id)
            assert (logprobs == np.array(sampled[ids], dtype=np.float32)).all()
            spans[call_id] += 1
    assert not [call_id for call_id, count in spans.items() if count > 1], "a call is trained in one trace"


async def check(system: Fleet) -> None:
    expected = {f"chaos{task}.{sample}" for task in range(TASKS) for sample in range(SAMPLES)}
    outputs = await system.outputs()
    trajectories = [output for output in outputs if isinstance(output, Trajectory)]
    assert Counter(t.session_id for t in trajectories) == dict.fromkeys(expected, 1)
    groups = [output.task_id for output in outputs if isinstance(output, GroupFinished)]
    assert sorted(groups) == [f"chaos{task}" for task in range(TASKS)]
    assert {t.session_id: (t.status, t.reward) for t in trajectories} == dict.fromkeys(
        expected, (Status.COMPLETED, 1.0)
    )
    for trajectory in trajectories:
        check_tokens(system, trajectory)
        answered_calls = [call for call in trajectory.calls if call.outcome == "answered"]
        assert len(answered_calls) >= TURNS
    logged = Counter(call.call_id for call in await system.calls() if isinstance(call, Completion) and call.sampled)
    seen = [answer["call_id"] for answer in system.answered()]
    assert len(seen) >= len(expected) * TURNS
    assert {call_id: logged[call_id] for call_id in seen} == dict.fromkeys(seen, 1)
    assert await system.dead_letters() == 0
    assert system.leftovers() == []


@pytest.mark.timeout(400)
async def test_killing_and_stopping_every_kind_of_process_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("POLAR_CHAOS_SEED", random.SystemRandom().randrange(2**32)))
    print(f"POLAR_CHAOS_SEED={seed}")
    workers = [*(f"{role}-1" for role in ROLES), "coordinator-2", "builder-2", "run-2"]
    async with fleet(tmp_path / "data", workers) as system:
        tasks = [system.task(f"chaos{n}", TURNS, SAMPLES, pause_s=1.2, max_attempts=10) for n in range(TASKS)]
        await submit(system, tasks[0])
        torments = asyncio.create_task(torment(system, random.Random(seed)))
        for task in tasks[1:]:
            await submit(system, task)
        print(await torments)
        async with SessionTable(system.settings) as table:
            finished = await table.until(lambda: all(table.is_finished(task["task_id"]) for task in tasks), SETTLED_S)
            stuck = [s for rows in table.sessions.values() for s in rows.values() if s.phase is not Phase.ENDED]
        assert finished, stuck
        await check(system)


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
            claims = {s.claim_id for s in rows.values() if s.sample_index in lost}
            await system.kill("run-1")
            killed_at = time.monotonic()
            async with asyncio.timeout(10):
                while [each for each in system.leftovers() if each.claim_id in claims]:
                    await asyncio.sleep(0.02)
            print(f"nothing of them lives {time.monotonic() - killed_at:.2f} s after the kill")
            assert await table.until(
                lambda: all(rows[n].attempt == 2 and rows[n].phase is Phase.RUNNING for n in lost), 60
            )
            print(f"all {len(lost)} run again {time.monotonic() - killed_at:.1f} s after the kill")
            assert await table.until(lambda: table.is_finished("killed"), 120)
            assert {n: s.spent for n, s in rows.items()} == {n: int(n in lost) for n in rows}
        assert {t.status for t in await system.outputs() if isinstance(t, Trajectory)} == {Status.COMPLETED}
        assert system.leftovers() == []
