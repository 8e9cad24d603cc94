"""`polar cancel`: writes the fact itself; the coordinator honours it in every state, also before it knows the task."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

import typer

from polar import settings
from polar.cli.options import Data
from polar.types.errors import InputError

TARGET = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}(\.\d{1,4})?$")


def cancel(
    target: Annotated[str, typer.Argument(metavar="TASK|SESSION", help="A session is <task>.<sample>.")],
    data: Data = None,
) -> None:
    """End a task, or one session of it.

    What was captured until then comes out as CANCELLED trajectories.
    """
    if not TARGET.match(target):
        raise InputError("TASK|SESSION", target, "expected a task id, or <task id>.<sample index>")
    from polar import client

    asyncio.run(client.cancel(settings.load(data), target))
    typer.echo(f"asked for the end of {target}")
