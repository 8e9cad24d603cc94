"""`polar submit`: all TaskRequests of an invocation, or none of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar import settings
from polar.cli import documents, progress
from polar.cli.exits import Exit
from polar.cli.options import Data, Format, Output
from polar.cli.status import of_task
from polar.cli.visible import visible
from polar.settings import Settings
from polar.types.errors import InputError, Kind
from polar.types.session import Status
from polar.types.task import TaskRequest, parse

if TYPE_CHECKING:
    from polar.client import SessionTable


def submit(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="YAML, JSON or JSON Lines; - reads standard input.")
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Until every session has its trajectory.")] = False,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Submit tasks, and print their ids. With --wait, name those sessions that failed, and exit 1 where one did as `infra` or `input`."""
    requests = _requests(files)
    raise typer.Exit(asyncio.run(_submit(settings.load(data), requests, wait, output)))


def _requests(files: Sequence[str]) -> list[TaskRequest]:
    """The tasks of all files, one for each id. Where any is bad all that is wrong is said, and the command ends."""
    found: dict[str, TaskRequest] = {}
    problems: list[str] = []
    for file in files:
        try:
            read = documents.read(file)
        except InputError as error:
            problems.append(str(error))
            continue
        for document in read:
            try:
                request = documents.anchored(parse(document.body), file)
                _warn_of_missing(document.place, request)
                if found.setdefault(request.task_id, request) != request:
                    raise InputError("task_id", request.task_id, "another body of this submission has it, too")
            except InputError as error:
                problems.append(f"{document.place}: {error}")
    if problems:
        for problem in problems:
            typer.echo(f"polar: {visible(problem)}", err=True)
        typer.echo("polar: nothing was submitted", err=True)
        raise typer.Exit(Exit.BAD_INPUT)
    return list(found.values())


def _warn_of_missing(place: str, request: TaskRequest) -> None:
    """What isn't on this machine may be on the workers': said, not refused."""
    for index, action in enumerate(request.runtime.prepare):
        if action.source is not None and not Path(action.source).exists():
            said = f"{place}: runtime.prepare.{index}.source: there is no {action.source} on this machine; the workers need it there"
            typer.echo(f"polar: {visible(said)}", err=True)


async def _submit(found: Settings, requests: list[TaskRequest], wait: bool, output: Format) -> int:
    """The exit code."""
    from polar import client

    ids = [request.task_id for request in requests]
    async with client.SessionTable(found, set(ids)) as table:
        unanswered = await client.submit(found, requests, table, answer_s=client.ANSWER_S)
        if output is Format.TABLE:
            typer.echo("\n".join(ids))
        if unanswered:
            typer.echo(
                f"polar: no coordinator has shown {', '.join(unanswered)} within {client.ANSWER_S:.0f} s: they lie on Kafka, and start "
                "when `polar worker fanout coordinator` runs (what it refuses is in polar.dead-letters)",
                err=True,
            )
        if wait:
            try:
                samples = {request.task_id: request.num_samples for request in requests}
                await client.unless_gone(found, progress.until_finished(table, samples))
            except asyncio.CancelledError:  # Ctrl-C
                typer.echo("polar: the work goes on: `polar status` shows it, `polar cancel` ends it", err=True)
                raise
        if output is Format.JSON:
            tasks = [of_task(request.task_id, request.num_samples, table) for request in requests]
            typer.echo(json.dumps(tasks, indent=2))
        return _judged(table, ids) if wait else 0


def _judged(table: SessionTable, ids: Sequence[str]) -> int:
    """Name each session that failed, and why, on stderr; 1 where one did for what isn't the agent's doing."""
    failed = [row for task_id in ids for row in table.ended(task_id) if row.status is Status.FAILED]
    errors = [(row.session_id, row.error) for row in failed if row.error is not None]
    for session_id, error in errors:
        # An agent's own words may run over lines.
        message = visible(" ".join(error.message.split()))
        typer.echo(f"polar: {session_id} FAILED: {error.stage} {error.kind}/{error.code}: {message}", err=True)
    return Exit.FAILED if any(error.kind in (Kind.INFRA, Kind.INPUT) for _, error in errors) else 0
