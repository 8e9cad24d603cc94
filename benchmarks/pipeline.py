"""Sessions through all stages: how many a second one `polar up` carries, the CPU that each costs, and how busy its slots are.

    python -m benchmarks.pipeline [--format table|json]

*Throughput*: one task of 500 samples; a `shell` harness asks the proxy once with `curl` and ends. So what is measured is the pipeline
itself: tickets, claims, grants, sandboxes, facts, a call, a build, with the default slots (init 4, run 8, evaluate 4). An indication:
everything shares this machine, and a coding agent's own work, minutes of it, comes on top.

*Sandboxes*: the same task in cells and in plain processes, by turns, in one system.

*Slots*: 10,240 sessions are queued for 4 workers of 8 run slots; their harness sleeps, log-normally, 5 s in the mean with sigma 1.2.
For a minute the coordinator's table is watched: how many of the slots run a harness, how many sessions lie READY, and how soon tasks of
priority 100 start that are submitted behind all the others.
"""

from __future__ import annotations

import asyncio
import math
import random
import shutil
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

from benchmarks import report
from benchmarks.report import Figure, say
from benchmarks.system import System, child, up
from polar.client import Client
from topics import sessions
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.follow import Follower, Since
from topics.types.session import Phase, SessionState
from topics.types.task import parse

SAMPLES = 500
TURNS, SAMPLES_A_TURN = 4, 100
"""Of each sandbox."""
WARM_UP = 50
ONE_CALL = r"""
body='{"model": "polar-scripted", "messages": [{"role": "user", "content": "hello"}]}'
curl --silent --show-error --fail --output /dev/null --config - --header 'Content-Type: application/json' --data "$body" \
  "$OPENAI_BASE_URL/chat/completions" <<<"header = \"Authorization: Bearer $OPENAI_API_KEY\""
"""
"""The key comes on stdin: what stands in an argument vector is seen by all."""

WORKERS = 4
SLOTS = 8
INIT_SLOTS = 4
"""Of the one worker that `polar up` has."""
TASKS, SAMPLES_EACH = 20, 512
MEAN_S = 5.0
SIGMA = 1.2
SEED = 12
WATCHED_S = 60.0
FULL_S = 120.0
"""For all run slots to be taken a first time."""
URGENT = 5
START_S = 30.0
WAITING = (Phase.QUEUED, Phase.INIT, Phase.READY)


def task(name: str, samples: int, command: str, priority: int = 0, backend: str | None = None) -> dict[str, Any]:
    """A TaskRequest of a shell command; without a backend it runs in a cell."""
    agent = {"harness": "shell", "custom_shell": {"command": command}}
    return {
        "task_id": name,
        "instruction": "say hello",
        "num_samples": samples,
        "agent": agent,
        "priority": priority,
        "runtime": {"backend": backend},
    }


def sleeps(chance: random.Random) -> str:
    """A command that sleeps for another length in each sample."""
    lengths = (chance.lognormvariate(math.log(MEAN_S) - SIGMA**2 / 2, SIGMA) for _ in range(SAMPLES_EACH))
    return f"lengths=({' '.join(f'{length:.2f}' for length in lengths)}); exec sleep ${{lengths[${{POLAR_SESSION_ID##*.}}]}}"


class Watch:
    """The coordinator's table as it changes: how many sessions are in each phase, and for how long."""

    def __init__(self, settings: Settings) -> None:
        self.phases: Counter[Phase] = Counter()
        self.most_ready = 0
        """READY at once, after any one row; rows of a transaction come one after the other, so rather too many."""
        self.run_s = 0.0
        """Seconds of RUNNING, of all sessions, so far."""
        self._of: dict[str, Phase] = {}
        self._at = time.monotonic()
        self._changed = asyncio.Event()
        self.follower = Follower(settings, sessions.TOPIC, self._on_row, since=Since.BEGINNING, committed=True)

    def phase(self, session_id: str) -> Phase | None:
        return self._of.get(session_id)

    def pass_time(self) -> None:
        """Count up to now."""
        now = time.monotonic()
        self.run_s += self.phases[Phase.RUNNING] * (now - self._at)
        self._at = now

    async def until_running(self, slots: int) -> None:
        """Until so many sessions run."""
        async with asyncio.timeout(FULL_S):
            while self.phases[Phase.RUNNING] < slots:
                self._changed.clear()
                await self._changed.wait()

    async def until_started(self, session_id: str) -> None:
        """Until a session's run is granted."""
        async with asyncio.timeout(START_S):
            while self.phase(session_id) in (None, *WAITING):
                self._changed.clear()
                await self._changed.wait()

    def _on_row(self, row: sessions.Row, _: kafka.Record) -> None:
        if not isinstance(row, SessionState):
            return
        self.pass_time()
        if before := self._of.get(row.session_id):
            self.phases[before] -= 1
        self._of[row.session_id] = row.phase
        self.phases[row.phase] += 1
        self.most_ready = max(self.most_ready, self.phases[Phase.READY])
        self._changed.set()


async def throughput() -> list[Figure]:
    """Warms up, then runs the task."""
    if shutil.which("curl") is None:
        raise SystemExit("the harness of this benchmark is curl, and there is none on this machine; install it")
    async with up() as system:
        await system.run(task("warm-up", WARM_UP, ONE_CALL))
        before = system.cpu()
        took = await system.run(task("many", SAMPLES, ONE_CALL))
        spent = {name: (after - before[name]) / SAMPLES * 1e3 for name, after in system.cpu().items()}
        alone = await system.run(task("one", 1, ONE_CALL))
    return [
        Figure("sessions a second", SAMPLES / took, "/s", "≥ 25"),
        Figure("one session alone", alone * 1e3, "ms"),
        *(Figure(f"CPU: {name}", milliseconds, "ms a session") for name, milliseconds in spent.items()),
        Figure("CPU: all", sum(spent.values()), "ms a session"),
    ]


async def sandboxes() -> list[Figure]:
    """What a cell costs beside a process: the same task in both, by turns, in one system."""
    spent: dict[str, list[float]] = {"cell": [], "process": []}
    init: dict[str, list[float]] = {"cell": [], "process": []}
    async with up("--trust-tasks") as system:
        for turn in range(-1, TURNS):
            for backend in spent:
                before, name = system.cpu(), f"{backend}{turn}"
                await system.run(task(name, SAMPLES_A_TURN, ONE_CALL, backend=backend))
                used = (sum(system.cpu().values()) - sum(before.values())) / SAMPLES_A_TURN * 1e3
                if turn >= 0:  # the first warms up
                    spent[backend].append(used)
                    init[backend] += await _init_ms(system.settings, name)
    cpu = {backend: statistics.median(turns) for backend, turns in spent.items()}
    took = {backend: statistics.median(times) for backend, times in init.items()}
    return [
        *(Figure(f"CPU of a session in a {backend}", cpu[backend], "ms") for backend in spent),
        Figure("CPU: cell / process", cpu["cell"] / cpu["process"], "", "≤ 1.1"),
        Figure("INIT: cell - process, p50", took["cell"] - took["process"], "ms", "≤ 50"),
    ]


async def _init_ms(settings: Settings, task_id: str) -> list[float]:
    """How long each session's INIT took."""
    async with Client(settings).table({task_id}) as table:
        return [row.accounting.init_ms for row in table.sessions[task_id].values()]


async def slots() -> list[Figure]:
    """Watches a backlog for a minute, urgent tasks among it."""
    async with up() as system:
        with ExitStack() as workers:
            for _ in range(WORKERS - 1):
                workers.enter_context(child("-m", "polar.cli", "worker", "run", "--data", str(system.data)))
            watch = Watch(system.settings)
            await watch.follower.start()
            try:
                return await _watched(system, watch)
            finally:
                await watch.follower.stop()


async def _watched(system: System, watch: Watch) -> list[Figure]:
    chance = random.Random(SEED)
    await _submit(system, [task(f"queued-{n}", SAMPLES_EACH, sleeps(chance)) for n in range(TASKS)])
    await watch.until_running(WORKERS * SLOTS)
    say(f"all {WORKERS * SLOTS} run slots are taken, {watch.phases[Phase.QUEUED]} sessions are queued")
    watch.pass_time()
    began, ran = time.monotonic(), watch.run_s
    waits = []
    for n in range(URGENT):
        await asyncio.sleep(began + WATCHED_S * n / URGENT - time.monotonic())
        asked = time.monotonic()
        await _submit(system, [task(f"urgent-{n}", 1, "true", priority=100)])
        await watch.until_started(f"urgent-{n}.0")
        waits.append(time.monotonic() - asked)
    await asyncio.sleep(began + WATCHED_S - time.monotonic())
    watch.pass_time()
    busy = (watch.run_s - ran) / (time.monotonic() - began) / (WORKERS * SLOTS)
    if not any(watch.phases[phase] for phase in WAITING):
        raise SystemExit("the backlog was worked off before the minute was over: queue more")
    return [
        Figure("run slots that run a harness", busy * 100, "%", "≥ 95"),
        Figure("READY at once, at most", watch.most_ready, "sessions", f"≤ {WORKERS * SLOTS + INIT_SLOTS}"),
        Figure("priority 100 behind the others, from handing in to its run, worst", max(waits), "s", "≤ 2"),
        Figure("queued meanwhile", watch.phases[Phase.QUEUED], "sessions"),
    ]


async def _submit(system: System, bodies: list[dict[str, Any]]) -> None:
    tasks = [parse(body) for body in bodies]
    client = Client(system.settings)
    async with client.table({task.task_id for task in tasks}) as table:
        if missing := await client.submit(tasks, table, answer_s=FULL_S):
            raise SystemExit(f"no coordinator took {missing}")


def run() -> list[Figure]:
    """All figures."""
    return [*asyncio.run(throughput()), *asyncio.run(sandboxes()), *asyncio.run(slots())]


if __name__ == "__main__":
    report.main(__doc__, run)
