"""`polar submit` submits all TaskRequests of an invocation, or none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli import documents, progress
from polar.cli.background_reader import read_in_background
from polar.cli.exits import Exit
from polar.cli.options import Data, Format, Output, checked_run
from polar.cli.output import note, one_line, print_json, say
from polar.cli.status import of_task
from polar.uploads import Uploads, lacks_content
from topics.environment import blob_store, settings
from topics.environment.settings import Settings
from topics.types.errors import InputError, Kind
from topics.types.session import Status
from topics.types.task import TaskRequest, parse

if TYPE_CHECKING:
    from polar.client import Client
    from polar.table import SessionTable

NOT_THE_AGENTS = (Kind.INFRA, Kind.INPUT, Kind.EVALUATION)
"""Kinds of error that `--wait` reports as failed work; others are outcomes of a session."""


def submit(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="YAML, JSON or JSON Lines; - reads standard input.")
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every session has its trajectory.")] = False,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            "--max-in-flight",
            min=1,
            metavar="N",
            help="Submit as sessions finish, with at most N unfinished. Reads JSON Lines line by line.",
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="Name of the run that the tasks belong to, in place of their own."),
    ] = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Submit tasks and print their ids.

    --wait also names failed sessions, and exits with 1 if the error of one is `infra` or `input`, or if its evaluation failed. Exits with
    2 if the system refuses a task.
    """
    checked_run(run)
    if max_in_flight is not None:
        raise typer.Exit(asyncio.run(_feed(settings.load(data), files, run, max_in_flight, wait, output)))
    tasks = _tasks(files, run)
    found = settings.load(data)
    raise typer.Exit(asyncio.run(_submit(found, _requests(found, tasks), wait, output)))


@dataclass(frozen=True)
class _Task:
    """A task as its file has it."""

    place: str
    folder: Path
    """Where its relative sources start."""
    request: TaskRequest

    def uploaded(self, uploads: Uploads) -> TaskRequest:
        """The task with the content of its uploads. Raises InputError with the place, NotReadyError."""
        try:
            return uploads.with_content(self.request, self.folder)
        except InputError as error:
            error.move_to(f"{self.place}: {error.field}")
            raise


def _tasks(files: Sequence[str], run: str | None) -> list[_Task]:
    """The tasks of all files. If any is bad, print every problem and end the command."""
    found: list[_Task] = []
    problems: list[InputError] = []
    for file in files:
        try:
            read = documents.read(file)
        except InputError as error:
            problems.append(error)
            continue
        for document in read:
            try:
                found.append(_parsed(document, file, run))
            except InputError as error:
                problems.append(error)
    _end_if_bad(problems)
    return found


def _requests(found: Settings, tasks: Sequence[_Task]) -> list[TaskRequest]:
    """The tasks with the content of their uploads, one per id. If any is bad, print every problem and end the command."""
    if any(lacks_content(task.request) for task in tasks):
        _ = found.bootstrap  # without Kafka nothing is stored
    requests: dict[str, TaskRequest] = {}
    problems: list[InputError] = []
    with progress.uploading() as on_bytes:
        uploads = Uploads(blob_store.of(found), on_bytes)
        for task in tasks:
            try:
                request = task.uploaded(uploads)
                if requests.setdefault(request.task_id, request) != request:
                    reason = "another body of this submission has the same id"
                    raise InputError(f"{task.place}: task_id", request.task_id, reason)
            except InputError as error:
                problems.append(error)
    _end_if_bad(problems)
    return list(requests.values())


def _end_if_bad(problems: Sequence[InputError]) -> None:
    for problem in problems:
        note(str(problem))
    if problems:
        note("nothing was submitted")
        raise typer.Exit(Exit.BAD_INPUT)


def _parsed(document: documents.Document, file: str, run: str | None) -> _Task:
    """The task of a document, of this run if one is given. Raises InputError with the place."""
    body = document.body if run is None else {**document.body, "run": run}
    try:
        return _Task(document.place, documents.folder_of(file), parse(body))
    except InputError as error:
        error.move_to(f"{document.place}: {error.field}")
        raise


async def _submit(found: Settings, requests: list[TaskRequest], wait: bool, output: Format) -> int:
    """Submit all tasks; the exit code."""
    from polar.client import ANSWER_S, Client
    from polar.table import TaskRefusedError

    client = Client(found)
    ids = [request.task_id for request in requests]
    async with client.table(set(ids)) as table:
        try:
            unanswered = await client.submit(requests, table, answer_s=ANSWER_S)
        except TaskRefusedError as error:
            unanswered = error.unanswered
            for refusal in error.refusals:
                note(progress.refused(refusal))
        await _warn_of_unserved(client, {request.runtime.pool for request in requests})
        if output is Format.TABLE:
            say("\n".join(ids))
        if unanswered:
            note(
                f"no coordinator has shown {', '.join(unanswered)} within {ANSWER_S:.0f} s: they are on Kafka, and start "
                "when `polar worker fanout coordinator` runs (`polar dead-letters list` shows refused ones)"
            )
        return await _ended(client, table, {request.task_id: request.num_samples for request in requests}, wait, output)


async def _feed(
    found: Settings, files: Sequence[str], run: str | None, max_in_flight: int, wait: bool, output: Format
) -> int:
    """Submit tasks as sessions finish; the exit code. Tasks sent before an error stay sent."""
    from polar.client import Client

    client = Client(found)
    samples: dict[str, int] = {}
    announce = progress.Throttled()

    def on_sent(request: TaskRequest, unfinished: int) -> None:
        samples[request.task_id] = request.num_samples
        if output is Format.TABLE:
            say(request.task_id)
        announce(f"{len(samples)} tasks submitted, {unfinished} of at most {max_in_flight} sessions unfinished")

    uploads = Uploads(blob_store.of(found), progress.upload_lines())
    requests = warned_of_pools(client, read_in_background(_one_by_one(files, run, uploads)))
    async with client.table() as table:
        feeding = client.feed(requests, table, max_in_flight=max_in_flight, on_sent=on_sent)
        try:
            await client.unless_gone(feeding)
        except InputError as error:
            note(str(error))
            note(f"{len(samples)} tasks were submitted before; submit the rest again, none runs twice")
            return Exit.BAD_INPUT
        return await _ended(client, table, samples, wait, output)


def _one_by_one(files: Sequence[str], run: str | None, uploads: Uploads) -> Iterator[TaskRequest]:
    """The tasks of all files, with the content of their uploads. Raises InputError, with the place, at the first bad one."""
    for file in files:
        for document in documents.stream(file):
            yield _parsed(document, file, run).uploaded(uploads)


async def warned_of_pools(client: Client, requests: AsyncIterator[TaskRequest]) -> AsyncIterator[TaskRequest]:
    """The requests; warns once of each pool."""
    seen: set[str] = set()
    async for request in requests:
        if request.runtime.pool not in seen:
            seen.add(request.runtime.pool)
            await _warn_of_unserved(client, {request.runtime.pool})
        yield request


async def _warn_of_unserved(client: Client, pools: Collection[str]) -> None:
    """Warn of pools without live workers. No error: workers may come later."""
    for pool, stages in (await client.unserved(pools)).items():
        names = " ".join(stage.value for stage in stages)
        note(
            f"pool {pool} has no live worker for {names}; sessions wait for one (`polar worker {names} --pool {pool}`)"
        )


async def _ended(client: Client, table: SessionTable, samples: Mapping[str, int], wait: bool, output: Format) -> int:
    """Wait for the tasks, print them, and return the exit code. `samples`: their number by task id."""
    if wait:
        try:
            await client.unless_gone(progress.until_finished(table, samples))
        except asyncio.CancelledError:  # Ctrl-C
            note("the tasks continue: `polar status` shows them, `polar cancel` ends them")
            raise
    if output is Format.JSON:
        tasks = [of_task(task_id, count, table) for task_id, count in samples.items()]
        print_json(tasks)
    failed = _failures(table, list(samples)) if wait else 0
    return Exit.BAD_INPUT if not table.refusals.keys().isdisjoint(samples) else failed


def _failures(table: SessionTable, ids: Sequence[str]) -> int:
    """Print each failed session, each failed evaluation and their errors on stderr; exit code 1 if an error isn't the agent's."""
    rows = [row for task_id in ids for row in table.ended(task_id)]
    errors = [
        (row, error)
        for row in rows
        for error in dict.fromkeys((row.error if row.status is Status.FAILED else None, row.evaluation_error))
        if error is not None
    ]
    for row, error in errors:
        message = one_line(error.message)
        note(f"{row.session_id} {row.status}: {error.stage} {error.kind}/{error.code}: {message}")
    return Exit.FAILED if any(error.kind in NOT_THE_AGENTS for _, error in errors) else 0
