"""`polar cancel`: writes the fact itself; the coordinator honours it in every state, also before it knows the task.

The table is looked at only to say what the fact will do; what has ended needs none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli import session_ids
from polar.cli.options import Data
from polar.cli.output import note
from topics.environment import settings
from topics.environment.settings import Settings
from topics.types.session import Phase

if TYPE_CHECKING:
    from polar.client import SessionTable


def cancel(
    target: Annotated[str, typer.Argument(metavar=session_ids.FIELD, help="A session is <task>.<sample>.")],
    data: Data = None,
) -> None:
    """End a task, or one session of it.

    What was captured until then comes out as CANCELLED trajectories.
    """
    asyncio.run(_cancel(settings.load(data), session_ids.read(target)))


async def _cancel(found: Settings, target: session_ids.Target) -> None:
    from polar.client import Client

    client = Client(found)
    async with client.table({target.task_id}) as table:
        task = table.tasks.get(target.task_id)
        if task is not None:
            target.check(task)
        if _has_ended(table, target):
            note(f"{target.name} has ended already")
            return
    await client.cancel(target.name)
    typer.echo(f"asked for the end of {target.name}")
    if task is None or task.body_hash is None:
        note(f"{target.name} is not known yet: one that is submitted later under this id is ended at once")


def _has_ended(table: SessionTable, target: session_ids.Target) -> bool:
    """Whether all that is meant has its trajectory."""
    if target.sample is None:
        return table.is_finished(target.task_id)
    row = table.sessions.get(target.task_id, {}).get(target.sample)
    return row is not None and row.phase is Phase.ENDED
