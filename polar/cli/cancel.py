"""`polar cancel` writes the fact itself. The coordinator honours it in every state, even before it knows the task.

The command reads the coordinator's table only to print what the fact will do, and writes no fact for what has ended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli import session_ids
from polar.cli.options import Data
from polar.cli.output import note, say
from topics.environment import settings
from topics.environment.settings import Settings
from topics.types.session import Phase

if TYPE_CHECKING:
    from polar.table import SessionTable


def cancel(
    name: Annotated[str, typer.Argument(metavar=session_ids.FIELD, help=session_ids.HELP)], data: Data = None
) -> None:
    """Cancel a task, or one session of it.

    Everything captured so far becomes CANCELLED trajectories.
    """
    asyncio.run(_cancel(settings.load(data), session_ids.parse(name)))


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
    say(f"requested the end of {target.name}")
    if task is None or task.body_hash is None:
        note(f"{target.name} is not known yet; if it is submitted later under this id, it is cancelled at once")


def _has_ended(table: SessionTable, target: session_ids.Target) -> bool:
    if target.sample is None:
        return table.is_finished(target.task_id)
    row = table.sessions.get(target.task_id, {}).get(target.sample)
    return row is not None and row.phase is Phase.ENDED
