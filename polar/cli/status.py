"""`polar status`: the coordinator's table, as it stands: all tasks, the sessions of one, or one session."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from polar import settings
from polar.cli import targets
from polar.cli.options import Data, Format, Output
from polar.cli.tables import show
from polar.types.errors import InputError
from polar.types.session import Phase, SessionState

if TYPE_CHECKING:
    from polar.client import SessionTable


def status(
    target: Annotated[
        str | None, typer.Argument(metavar=f"[{targets.FIELD}]", help="A session is <task>.<sample>.")
    ] = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Show where tasks, one task's sessions, or one session stand."""
    rows = asyncio.run(_read(settings.load(data), None if target is None else targets.read(target)))
    if output is Format.JSON:
        typer.echo(json.dumps(rows, indent=2))
    elif target is None:
        show(["task", ">samples", ">ended", "ended as", "others are", ">mean reward"], map(_task_cells, rows))
    else:
        show(["session", "phase", ">attempt", "status", ">reward", "error"], map(_session_cells, rows))


async def _read(found: settings.Settings, target: targets.Target | None) -> list[dict[str, Any]]:
    from polar.client import SessionTable

    async with SessionTable(found, None if target is None else {target.task_id}) as table:
        if target is None:
            return [of_task(name, row.num_samples, table) for name, row in sorted(table.tasks.items())]
        if target.task_id not in table.tasks:
            raise InputError(targets.FIELD, target.name, "no coordinator knows such a task")
        target.check(table.tasks[target.task_id])
        rows = sorted(table.sessions.get(target.task_id, {}).items())
        return [_of_session(row) for index, row in rows if target.sample in (None, index)]


def of_task(task_id: str, samples: int, table: SessionTable) -> dict[str, Any]:
    """A task as programs get it."""
    rows = table.sessions.get(task_id, {}).values()
    rewards = [row.reward for row in rows if row.reward is not None]
    return {
        "task_id": task_id,
        "num_samples": samples,
        "ended": sum(row.phase is Phase.ENDED for row in rows),
        "phases": dict(Counter(row.phase.value for row in rows if row.phase is not Phase.ENDED)),
        "statuses": dict(Counter(row.status.value for row in rows if row.phase is Phase.ENDED and row.status)),
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
    }


def _of_session(row: SessionState) -> dict[str, Any]:
    return {
        "session_id": row.session_id,
        "task_id": row.task_id,
        "sample_index": row.sample_index,
        "phase": row.phase.value,
        "attempt": row.attempt,
        "status": row.status.value if row.status else None,
        "reward": row.reward,
        "error": msgspec.to_builtins(row.error),
        "worker_id": row.worker_id,
    }


def _task_cells(row: dict[str, Any]) -> list[object]:
    return [
        row["task_id"],
        row["num_samples"],
        row["ended"],
        said(row["statuses"]),
        said(row["phases"]),
        row["mean_reward"],
    ]


def _session_cells(row: dict[str, Any]) -> list[object]:
    error = row["error"]
    why = f"{error['stage']} {error['kind']}/{error['code']}: {error['message']}" if error else None
    return [row["session_id"], row["phase"], row["attempt"], row["status"], row["reward"], why]


def said(counts: dict[str, int]) -> str | None:
    """`3 COMPLETED, 1 FAILED`; None where there is nothing to count."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or None
