"""Torment: every kind of process and broker killed, stopped and resumed at random while sessions run; then what must hold is checked.

`python -m tests.acceptance.chaos` (`make chaos`) runs it for as long as one wants, seed after seed; `test_chaos` runs a short one.
What is promised: exactly one trajectory a sample, every answered call once on the log, no process, folder or session left over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import polar
from polar.fleet import InFlight
from polar.scripted.record import Sampled
from polar.table import SessionTable
from tests.acceptance.fleet import Fleet, fleet
from tests.consumers.webhooks.endpoint import receiving
from tests.waiting import eventually
from topics.log.kafka import KafkaError
from topics.log.producer import UnacknowledgedError
from topics.types.completion import Completion
from topics.types.errors import NotReadyError
from topics.types.session import Phase, Status
from topics.types.trajectory import GroupFinished, Trajectory, expand

WORKERS = (
    *(f"{role}-{n}" for role in ("fanout", "coordinator", "builder", "init", "evaluate") for n in (1, 2)),
    *(f"run-{n}" for n in (1, 2, 3)),
    "analytics-1",
    *(f"webhooks-{n}" for n in (1, 2)),
)
VICTIMS = (*WORKERS, "proxy", "proxy-2", "engine")
SAMPLES = 4
TURNS = 4
PAUSE_S = 0.4
LONGEST_PAUSE_S = 3.0
LONGEST_STOP_S = 12.0
"""Twice a lease (6 s), a group's session (6 s), a transaction (5 s)."""
SUBMITTED_S = 120.0
SETTLED_S = 300.0
"""From the end of the torment until the last trajectory is out."""
REAPED_S = 120.0
"""Until runtimes that nobody needs are gone: they are looked at for 60 s."""

TOLD_S = 90.0
"""Until the last group's end is told: a try that failed comes again after 5 s, 10 s, 20 s."""
LAKE_S = 120.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Scenario:
    """How long, how much, and which chance."""

    seconds: float
    sessions: int
    seed: int
    brokers: int = 3

    @property
    def tasks(self) -> int:
        return -(-self.sessions // SAMPLES)


@dataclass
class Torment:
    """What is done to a system; `deeds` counts it. Lanes run side by side, a victim is in one lane's hand at a time."""

    system: Fleet
    chance: random.Random
    say: Say
    deeds: Counter[str] = field(default_factory=Counter)
    _taken: set[str] = field(default_factory=set)
    _began: float = field(default_factory=time.monotonic)

    async def run(self, seconds: float) -> None:
        """All lanes for so long; at the end everything runs again."""
        lanes = (self._kills, self._stops, self._brokers, self._growth, self._updates)
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._keeps(), name="keeps")
            async with asyncio.TaskGroup() as tormenting:
                for lane in lanes:
                    tormenting.create_task(lane(time.monotonic() + seconds), name=lane.__name__)
            keeping.cancel()

    async def _keeps(self) -> None:
        """What any supervisor does: a process that ended by itself, since it met no Kafka for too long, is started again."""
        while True:
            await asyncio.sleep(1)
            for name, process in list(self.system.processes.items()):
                if process.returncode is not None and name in VICTIMS and name not in self._taken:
                    self._taken.add(name)
                    self._note(f"restart ({process.returncode})", name)
                    await self.system.start(name)
                    self._taken.remove(name)

    async def _kills(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(self.chance.uniform(0.5, 3))
            async with self._victim(VICTIMS) as victim:
                if self.chance.random() < 0.3:
                    self._note("end", victim)
                    await self.system.end(victim)
                else:
                    self._note("kill", victim)
                    await self.system.kill(victim)
                await asyncio.sleep(self.chance.choice((0, 0, self.chance.uniform(0, 4))))
                await self.system.start(victim)

    async def _stops(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(self.chance.uniform(0.5, 4))
            async with self._victim(VICTIMS) as victim:
                self._note("stop", victim)
                self.system.signal(victim, signal.SIGSTOP)
                await asyncio.sleep(self.chance.uniform(0.5, LONGEST_STOP_S))
                self.system.signal(victim, signal.SIGCONT)

    async def _brokers(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(self.chance.uniform(3, 12))
            names = self.system.brokers
            down = names if self.chance.random() < 0.1 else [self.chance.choice(names)]
            how = self.chance.choice(("kill", "end"))
            for name in down:
                self._note(how, name)
                await self.system.broker_down(name, clean=how == "end")
            await asyncio.sleep(self.chance.uniform(0, 8))
            await asyncio.gather(*(self.system.broker_up(name) for name in down))

    async def _growth(self, until: float) -> None:
        """Workers join, and leave again when they are asked to."""
        n = 100
        while time.monotonic() < until:
            await asyncio.sleep(self.chance.uniform(2, 8))
            n += 1
            name = f"{self.chance.choice(('run', 'init', 'coordinator'))}-{n}"
            self._note("join", name)
            await self.system.start(name)
            await asyncio.sleep(self.chance.uniform(2, 12))
            self._note("leave", name)
            await self.system.end(name)

    async def _updates(self, until: float) -> None:
        """A trainer's: pause, another version, go on. A pause that a dead broker or proxy breaks is tried again."""
        version = 0
        while time.monotonic() < until:
            await asyncio.sleep(self.chance.uniform(4, 12))
            try:
                in_flight: InFlight = self.chance.choice(("finish", "abort"))
                async with (
                    polar.Fleet(self.system.settings) as client,
                    client.paused(in_flight=in_flight, force=True) as pause,
                ):
                    await asyncio.sleep(self.chance.uniform(0, LONGEST_PAUSE_S))
                    version += 1
                    await pause.publish(version)
                    self._note("update", f"weights-{version}")
            except (polar.FleetError, NotReadyError, KafkaError, UnacknowledgedError) as error:
                self.say(f"        update failed: {error!r:.200}")
        await self._resumed()

    async def _resumed(self) -> None:
        """The last resume may have met a Kafka that was away."""
        async with asyncio.timeout(SUBMITTED_S):
            while True:
                try:
                    async with polar.Fleet(self.system.settings) as client:
                        if not (await client.resume()).state.paused:
                            return
                except (polar.FleetError, NotReadyError, KafkaError, UnacknowledgedError):
                    await asyncio.sleep(1)

    @asynccontextmanager
    async def _victim(self, names: tuple[str, ...]) -> AsyncIterator[str]:
        victim = self.chance.choice([name for name in names if name not in self._taken])
        self._taken.add(victim)
        try:
            yield victim
        finally:
            self._taken.remove(victim)

    def _note(self, deed: str, victim: str) -> None:
        self.deeds[f"{deed} {victim.partition('-')[0]}"] += 1
        self.say(f"{time.monotonic() - self._began:6.1f} s  {deed} {victim}")


async def run(data: Path, scenario: Scenario, say: Say) -> Counter[str]:
    """One whole torment and its checks; what was done. Raises AssertionError for a promise that was broken."""
    async with fleet(data, WORKERS, brokers=scenario.brokers) as system, receiving() as endpoint:
        await system.start("proxy-2")
        names = [f"chaos{n}" for n in range(scenario.tasks)]
        torment = Torment(system, random.Random(scenario.seed), say)
        async with asyncio.TaskGroup() as group:
            group.create_task(torment.run(scenario.seconds), name="torment")
            group.create_task(_submit_all(system, names, scenario.seconds * 0.8, endpoint.url), name="submit")
        say(f"at rest; done: {dict(sorted(torment.deeds.items()))}")
        await _settle(system, names, say)
        await check(system, names)
        await eventually(
            lambda: {json.loads(call.body)["data"]["task_id"] for call in endpoint.calls} == set(names), TOLD_S
        )
        await _check_lake(system, names)
        return torment.deeds


async def _check_lake(system: Fleet, names: list[str]) -> None:
    """The lake tells of every session once, when it has caught up."""
    expected = [{"tasks": len(names), "sessions": len(names) * SAMPLES, "trajectories": len(names) * SAMPLES}]
    query = (
        "SELECT (SELECT count(*) FROM groups WHERE ended = num_samples) AS tasks, (SELECT count(*) FROM sessions) AS sessions, "
        "(SELECT count(*) FROM trajectories) AS trajectories"
    )

    async def is_complete() -> bool:
        code, out, said = await system.polar("sql", query, "--format", "json")
        assert code == 0, said
        return bool(json.loads(out) == expected)

    await eventually(is_complete, LAKE_S)


async def _submit_all(system: Fleet, names: list[str], over_s: float, callback_url: str) -> None:
    """In ten portions over this time: there is work whenever something is killed."""
    more: dict[str, Any] = {"max_attempts": 100, "timeouts": {"run": 600}, "callback_url": callback_url}
    for portion in range(10):
        bodies = [system.task(name, TURNS, SAMPLES, pause_s=PAUSE_S, **more) for name in names[portion::10]]
        if bodies:
            async with asyncio.timeout(SUBMITTED_S):
                while (result := await system.polar("submit", "-", stdin="\n".join(map(json.dumps, bodies))))[0] != 0:
                    assert result[0] == 3, result
        await asyncio.sleep(over_s / 10)


async def _settle(system: Fleet, names: list[str], say: Say) -> None:
    """Until every task is finished; says who is stuck if not."""
    began = time.monotonic()
    async with SessionTable(system.settings) as table:
        finished = await table.until(
            lambda: all(table.is_finished(name) and table.tasks[name].closed_at is not None for name in names),
            SETTLED_S,
        )
        stuck = [s for rows in table.sessions.values() for s in rows.values() if s.phase is not Phase.ENDED]
        missing = [name for name in names if name not in table.tasks]
        attempts = Counter(s.attempt for rows in table.sessions.values() for s in rows.values())
    assert finished, (stuck, missing)
    say(f"all ended {time.monotonic() - began:.1f} s later; sessions by attempts: {dict(sorted(attempts.items()))}")


async def check(system: Fleet, names: list[str]) -> None:
    """What is promised, of these tasks."""
    expected = {f"{name}.{sample}" for name in names for sample in range(SAMPLES)}
    outputs = await system.outputs()
    trajectories = [output for output in outputs if isinstance(output, Trajectory)]
    assert Counter(t.session_id for t in trajectories) == dict.fromkeys(expected, 1)
    assert Counter(o.task_id for o in outputs if isinstance(o, GroupFinished)) == dict.fromkeys(names, 1)
    ends = {t.session_id: (t.status, t.reward, t.error) for t in trajectories}
    assert ends == dict.fromkeys(expected, (Status.COMPLETED, 1.0, None))
    sampled: dict[str | None, list[Sampled]] = {}
    for call in system.sampled():
        sampled.setdefault(call.session_id, []).append(call)
    for trajectory in trajectories:
        check_tokens(trajectory, sampled[trajectory.session_id])
        assert len([call for call in trajectory.calls if call.outcome == "answered"]) >= TURNS
    logged = Counter(call.call_id for call in await system.calls() if isinstance(call, Completion) and call.sampled)
    answers = system.answered()
    turns = Counter(answer["session_id"] for answer in answers)
    assert {session_id: turns[session_id] >= TURNS for session_id in expected} == dict.fromkeys(expected, True)
    seen = [answer["call_id"] for answer in answers]
    assert {call_id: logged[call_id] for call_id in seen} == dict.fromkeys(seen, 1)
    assert await system.dead_letters() == 0
    assert system.leftovers() == []
    await eventually(lambda: not system.runtimes(), REAPED_S, every_s=0.5)


def check_tokens(trajectory: Trajectory, calls: list[Sampled]) -> None:
    """Each trained span is what the engine sampled for that session, ids and logprobs, in some call."""
    sampled = {tuple(call.token_ids): call.logprobs for call in calls}
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


def _main() -> None:
    """Runs seeds one after another, each with a data folder of its own; keeps the folder of one that fails, and goes on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="of torment, a seed (10)")
    parser.add_argument("--sessions", type=int, default=200, help="a seed (200)")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after another (1)")
    parser.add_argument("--seed", type=int, default=None, help="the first (random)")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--quiet", action="store_true", help="one line a seed")
    given = parser.parse_args()
    first = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    failed = 0
    for seed in range(first, first + given.seeds):
        scenario = Scenario(given.minutes * 60, given.sessions, seed, given.brokers)
        failed += not _survived(scenario, (lambda _: None) if given.quiet else print)
    sys.exit(1 if failed else 0)


def _survived(scenario: Scenario, say: Say) -> bool:
    began = time.monotonic()
    data = Path(tempfile.mkdtemp(prefix=f"polar-chaos-{scenario.seed}-"))
    try:
        deeds = asyncio.run(run(data / "data", scenario, say))
    except Exception as error:
        traceback.print_exc()
        print(
            f"seed {scenario.seed}: FAILED after {time.monotonic() - began:.0f} s: {error!r:.300}; kept: {data}",
            flush=True,
        )
        return False
    shutil.rmtree(data)
    print(
        f"seed {scenario.seed}: {scenario.sessions} sessions, {deeds.total()} deeds, {time.monotonic() - began:.0f} s: well",
        flush=True,
    )
    return True


if __name__ == "__main__":
    _main()
