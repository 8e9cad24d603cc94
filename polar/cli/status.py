"""`polar status` shows the coordinator's table: all tasks, the sessions of one task, or one session."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from polar.cli import session_ids
from polar.cli.options import Data, Format, OnlyRun, Output, checked_run
from polar.cli.output import console, counted, escaped_line, print_json, say, show
from polar.show.fields import picked
from topics.environment import settings
from topics.types.errors import InputError
from topics.types.session import Phase, SessionState, Stage

if TYPE_CHECKING:
    from analytics.live.fold import Snapshot
    from polar.table import SessionTable

ROOMY = 110
"""Columns of a terminal that also has room for durations; the error is more important."""


def status(
    name: Annotated[str | None, typer.Argument(metavar=f"[{session_ids.FIELD}]", help=session_ids.HELP)] = None,
    run: OnlyRun = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Show live processes and all tasks, or the sessions of one task, or one session."""
    checked_run(run)
    found = settings.load(data)
    if name is None:
        rows, head = asyncio.run(_overview(found, run, with_head=output is Format.TABLE))
    elif run is not None:
        raise InputError("--run", run, f"goes with the list of all tasks; leave it out, or leave {name} out")
    else:
        rows, head = asyncio.run(_sessions(found, session_ids.parse(name))), ""
    if output is Format.JSON:
        print_json(rows)
    elif name is None:
        say(head)
        runs = ["run"] if run is None and any(row["run"] for row in rows) else []
        columns = ["task", *runs, ">samples", ">ended", "ended as", "others are", ">mean reward"]
        show(columns, (_task_cells(row, with_run=bool(runs)) for row in rows))
    else:
        took = [f">{stage} s" for stage in Stage] if console().width >= ROOMY else []
        labels = ["label"] if any(row["label"] for row in rows) else []
        columns = ["session", *labels, "phase", ">attempt", "status", ">reward", *took, "error"]
        show(columns, (_session_cells(row, with_label=bool(labels), with_durations=bool(took)) for row in rows))


async def _overview(found: settings.Settings, run: str | None, *, with_head: bool) -> tuple[list[dict[str, Any]], str]:
    from analytics.live.view import Live
    from polar.table import SessionTable

    async with SessionTable(found) as table:
        rows = [of_task(name, row.num_samples, table) for name, row in sorted(table.tasks.items())]
        rows = [row for row in rows if run in (None, row["run"])]
        if not with_head:
            return rows, ""
        async with Live(found, Live.PROCESSES) as live:
            await live.caught_up()
            return rows, _head(live.snapshot(), ready=sum(row["phases"].get(Phase.READY.value, 0) for row in rows))


async def _sessions(found: settings.Settings, target: session_ids.Target) -> list[dict[str, Any]]:
    from polar.table import SessionTable

    async with SessionTable(found, {target.task_id}) as table:
        if target.task_id not in table.tasks:
            raise InputError(
                session_ids.FIELD,
                target.name,
                "no coordinator knows this task; it may have been refused: `polar dead-letters list`",
            )
        target.check(table.tasks[target.task_id])
        rows = sorted(table.sessions.get(target.task_id, {}).items())
        return [_of_session(row) for index, row in rows if target.sample in (None, index)]


def of_task(task_id: str, samples: int, table: SessionTable) -> dict[str, Any]:
    rows = table.sessions.get(task_id, {}).values()
    rewards = [row.reward for row in rows if row.reward is not None]
    task = table.tasks.get(task_id)
    return {
        "task_id": task_id,
        "run": task.plan.run if task is not None and task.plan is not None else None,
        "num_samples": samples,
        "ended": sum(row.phase is Phase.ENDED for row in rows),
        "phases": dict(Counter(row.phase.value for row in rows if row.phase is not Phase.ENDED)),
        "statuses": dict(Counter(row.status.value for row in rows if row.phase is Phase.ENDED and row.status)),
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
    }


def _of_session(row: SessionState) -> dict[str, Any]:
    return {
        **picked(row, "session_id task_id sample_index label phase attempt status reward error worker_id"),
        "accounting": msgspec.structs.asdict(row.accounting),
    }


def _head(live: Snapshot, *, ready: int) -> str:
    """Live processes, busy slots, sessions that wait for a run slot, and a pause or drain, on one line; obstacles on a line each."""
    workers = [
        f"{load.stage.value}{'' if load.pool == 'default' else f' of {escaped_line(load.pool)}'} {load.busy}/{load.slots}"
        for load in live.stages
        if load.workers
    ]
    busy = f"; slots busy: {', '.join(workers)}" if workers else ""
    pause = f"; {notice}" if (notice := fleet_in_words(live)) else ""
    return f"alive: {counted(live.processes) or 'no process'}{busy}; {ready} sessions READY{pause}\n" + "".join(
        f"{escaped_line(obstacle)}\n" for obstacle in live.obstacles
    )


def fleet_in_words(live: Snapshot) -> str | None:
    """A sentence on a paused or draining fleet. None if the fleet runs."""
    states = []
    if live.paused:
        at = datetime.fromtimestamp((live.paused_since or 0) / 1000, tz=UTC).astimezone()
        states.append(f"paused since {at:%H:%M:%S}")
    if live.draining:
        states.append("draining")
    if not states:
        return None
    return f"the fleet is {' and '.join(states)} (generation {live.fleet_generation}): `polar fleet resume` ends this"


def _task_cells(row: dict[str, Any], *, with_run: bool) -> list[object]:
    return [
        row["task_id"],
        *([row["run"]] if with_run else []),
        row["num_samples"],
        row["ended"],
        counted(row["statuses"]),
        counted(row["phases"]),
        row["mean_reward"],
    ]


def _session_cells(row: dict[str, Any], *, with_label: bool, with_durations: bool) -> list[object]:
    error = row["error"]
    why = f"{error['stage']} {error['kind']}/{error['code']}: {error['message']}" if error else None
    took = [row["accounting"][f"{stage}_ms"] for stage in Stage] if with_durations else []
    seconds = [f"{ms / 1000:.1f}" if ms else None for ms in took]
    label = [row["label"]] if with_label else []
    return [row["session_id"], *label, row["phase"], row["attempt"], row["status"], row["reward"], *seconds, why]
