"""Cancel: from asking for the end until the harness is dead, its sandbox gone and its trajectory out.

    python -m benchmarks.cancelling [--format table|json]

A process for each role on one broker, default slots. In each state a task of several sessions waits or sleeps, is cancelled as a whole by
`polar.Client.cancel`, and is watched in the coordinator's table and on the disk; five times. `queued and ready` are forty sessions behind
eight that hold all run slots.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import report
from benchmarks.report import Figure
from polar.client import Client
from polar.table import SessionTable
from tests.acceptance.fleet import ROLES, Fleet, fleet
from topics.types.session import Phase
from topics.types.task import parse

TRIES = 5
SAMPLES = 4
RUN_SLOTS, QUEUED = 8, 40
REACHED_S = ENDED_S = 60.0
LOOK_S = 0.01
SLEEP = "sleep 600"
EVALUATED_SLOWLY = {"strategy": "test_on_output", "config": {"test_command": SLEEP}}
PREPARED_SLOWLY = {"prepare": [{"type": "exec", "command": SLEEP}]}


@dataclass(frozen=True)
class State:
    """Where sessions are when they are cancelled."""

    phases: frozenset[Phase]
    samples: int = SAMPLES
    command: str = SLEEP
    more: dict[str, Any] = field(default_factory=dict)


STATES = {
    "init": State(frozenset({Phase.INIT}), more={"runtime": PREPARED_SLOWLY}),
    "queued and ready": State(frozenset({Phase.QUEUED, Phase.READY}), QUEUED),
    "running": State(frozenset({Phase.RUNNING})),
    "evaluating": State(frozenset({Phase.EVALUATING}), command="true", more={"evaluator": EVALUATED_SLOWLY}),
}


def run() -> list[Figure]:
    """As `python -m benchmarks` calls it."""
    return asyncio.run(_run())


async def _run() -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        async with (
            fleet(Path(folder, "data"), [f"{role}-1" for role in ROLES]) as system,
            SessionTable(system.settings) as table,
        ):
            for name, state in STATES.items():
                took = [await _cancelled(system, table, f"{name.split()[0]}{n}", state) for n in range(TRIES)]
                figures.append(Figure(f"{name}, median of {TRIES}", median(took), "s"))
                figures.append(Figure(f"{name}, worst", max(took), "s", "≤ 2"))
    return figures


async def _cancelled(system: Fleet, table: SessionTable, name: str, state: State) -> float:
    """Seconds."""
    behind = f"before-{name}"
    if Phase.READY in state.phases:
        await _stand(system, table, behind, State(frozenset({Phase.RUNNING}), RUN_SLOTS), {})
    await _stand(system, table, name, state, system.mark)
    others = RUN_SLOTS if Phase.READY in state.phases else 0
    began = time.monotonic()
    await Client(system.settings).cancel(name)
    await _until(
        lambda: table.is_finished(name) and len(system.runtimes()) <= others and not system.leftovers(), ENDED_S
    )
    took = time.monotonic() - began
    if others:
        await Client(system.settings).cancel(behind)
        await _until(lambda: table.is_finished(behind) and not system.runtimes(), ENDED_S)
    return took


async def _stand(system: Fleet, table: SessionTable, name: str, state: State, env: dict[str, str]) -> None:
    """Submit a task, and wait until each of its sessions is in one of these phases, and one is in each.

    `Fleet.mark` in `env` marks harnesses that must be gone in the end.
    """
    shell = {"harness": "shell", "custom_shell": {"command": state.command}, "env": env}
    body = {"task_id": name, "instruction": "wait", "num_samples": state.samples, "agent": shell, **state.more}
    await Client(system.settings).submit([parse(body)], table)

    def stands() -> bool:
        phases = [row.phase for row in table.sessions.get(name, {}).values()]
        return len(phases) == state.samples and set(phases) == state.phases

    await _until(stands, REACHED_S)


async def _until(holds: Callable[[], bool], deadline_s: float) -> None:
    async with asyncio.timeout(deadline_s):
        while not holds():  # noqa: ASYNC110 - a folder tells nobody that it is gone
            await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    report.main(__doc__, run)
