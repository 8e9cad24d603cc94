"""`polar tasks check` runs the reference solution of each task of a set, and nothing, in sandboxes of a running system.

Each is a session of a TaskRequest of its own (`polar/tasks/checking.py`), submitted with a bound on unfinished sessions. Invariant: a task
is reported once, when both of its sessions have ended; what is reported stays reported if the command is interrupted.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from polar.cli import progress
from polar.cli.background_reader import read_in_background
from polar.cli.exits import Exit
from polar.cli.options import Data, Format, Output, checked_run
from polar.cli.output import counted, note, one_line, print_json, say, show
from polar.cli.submit import warned_of_pools
from polar.cli.task_selection import (
    Dataset,
    Env,
    Ignore,
    Image,
    Limit,
    Only,
    Repo,
    Seed,
    SetPath,
    Shuffle,
    Split,
    Template,
    Where,
    note_all,
    row_options,
    selected,
    template_of,
    upload_sources,
    variables_of,
)
from polar.tasks import checking, harbor_mapping
from polar.tasks.checking import Attempt, CheckedTask, Requests, Verdict
from polar.tasks.task_sets import Found, Member, Selection, Task
from polar.uploads import Uploads
from topics.environment import blob_store, settings
from topics.environment.settings import Settings
from topics.types.errors import InputError
from topics.types.task import TaskRequest

if TYPE_CHECKING:
    from polar.client import Client
    from polar.table import SessionTable

MAX_IN_FLIGHT = 32
"""Default of --max-in-flight: it keeps the slots of several `polar up` busy."""
LOOK_S = 1.0
"""Least time between two looks at the sessions."""

OnChecked = Callable[[CheckedTask], None]


def check(
    path: SetPath,
    dataset: Dataset = None,
    split: Split = None,
    only: Only = None,
    where: Where = None,
    limit: Limit = None,
    shuffle: Shuffle = False,
    seed: Seed = 0,
    template: Template = None,
    env: Env = None,
    image: Image = None,
    repo: Repo = None,
    ignore: Ignore = None,
    solve: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Solves each task, under bash in the workspace. Default: solution/solve.sh, as Harbor does; or git apply with a row's "
            "patch, which is in SOLUTION_PATCH. Tasks without either need it.",
        ),
    ] = None,
    max_in_flight: Annotated[
        int, typer.Option("--max-in-flight", min=1, metavar="N", help="At most N unfinished sessions.")
    ] = MAX_IN_FLIGHT,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="NAME",
            help="Run that the checks belong to, check-TIME by default. That of an interrupted check goes on with it.",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the ids of the usable tasks, one a line, for `polar tasks import --only`."
        ),
    ] = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Check which tasks are usable: the reward of the reference solution must be 1, and that of doing nothing 0.

    Both run in sandboxes of the running system. The template's agent and number of samples don't matter. Exits with 1 if a task isn't
    usable, and with 2 if one can't be read. Ctrl-C ends the command; with the same --run it goes on.
    """
    run_name = checked_run(run) or f"check-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    base, variables = template_of(template, None), variables_of(env)
    selection = selected(path, dataset, split, only, where, limit, seed if shuffle else None)
    if not selection.tasks and not selection.problems:
        raise typer.Exit(Exit.BAD_INPUT)
    found = settings.load(data)
    done: list[CheckedTask] = []
    with _file(write) as file, tempfile.TemporaryDirectory(prefix="polar-check-") as folder:
        options = row_options(image, repo, ignore, Path(folder, "rows"))
        cases = _cases(
            selection,
            lambda member, task: checking.requests(
                member, task, base, variables, run=run_name, solve=solve, options=options
            ),
        )
        options.repositories.write(
            upload_sources(case.requests.nothing for case in cases if isinstance(case.requests, Requests))
        )
        try:
            with progress.bar("tasks checked") as advance:

                def on_checked(checked: CheckedTask) -> None:
                    done.append(checked)
                    if file is not None and checked.verdict is Verdict.USABLE:
                        file.write(f"{harbor_mapping.task_id(checked.member.name)}\n")
                    advance(len(done), len(cases))

                _check_all(found, cases, max_in_flight, on_checked)
        finally:
            _report(cases, done, run_name, output)
    note_all(list(map(str, selection.problems)))
    if selection.problems:
        raise typer.Exit(Exit.BAD_INPUT)
    if any(checked.verdict is not Verdict.USABLE for checked in done):
        raise typer.Exit(Exit.FAILED)


@dataclass(eq=False)
class _Case:
    """A task to check."""

    member: Found
    requests: Requests | CheckedTask
    """What to run, or the verdict if nothing can be run."""
    task_ids: tuple[str, str] | None = None
    """Of the submitted requests: solution, nothing. None: not submitted yet."""

    def submitted(self, uploads: Uploads) -> Iterator[TaskRequest]:
        """The requests with the content of their uploads. The verdict is an error for a file that can't be uploaded, a body that is too
        large, and settings that a plug-in refuses: the other tasks go on."""
        from polar.task_bodies import sized_body

        if isinstance(self.requests, CheckedTask):
            return
        try:
            solution, nothing = (
                checking.identified(uploads.with_content(request, Path()), kind)
                for request, kind in ((self.requests.solution, "solution"), (self.requests.nothing, "nothing"))
            )
            for request in (solution, nothing):
                sized_body(request)
        except InputError as error:
            self.requests = CheckedTask(self.member, Verdict.ERROR, str(error))
            return
        self.task_ids = solution.task_id, nothing.task_id
        yield from (solution, nothing)

    def checked(self, table: SessionTable) -> CheckedTask | None:
        """The verdict; None while a session goes on."""
        if isinstance(self.requests, CheckedTask):
            return self.requests
        if self.task_ids is None or not all(map(table.is_over, self.task_ids)):
            return None
        if refusals := [table.refusals[task_id] for task_id in self.task_ids if task_id in table.refusals]:
            return CheckedTask(self.member, Verdict.ERROR, progress.refused(refusals[0]))
        solution, nothing = (Attempt.of(table.ended(task_id)[0]) for task_id in self.task_ids)
        return checking.checked(self.member, solution, nothing)


def _cases(selection: Selection, requests: Callable[[Found, Task], Requests | CheckedTask]) -> list[_Case]:
    """The tasks to check. Of several with one id, the first."""
    cases: dict[str, _Case] = {}
    repeated: list[_Case] = []
    for member, task in selection.tasks:
        task_id = harbor_mapping.task_id(member.name)
        if task_id in cases:
            reason = f"another task of the set is named {member.name}; give --dataset, or rename one"
            repeated.append(_Case(member, CheckedTask(member, Verdict.ERROR, reason)))
        else:
            cases[task_id] = _Case(member, requests(member, task))
    return [*cases.values(), *repeated]


def _check_all(found: Settings, cases: Sequence[_Case], max_in_flight: int, on_checked: OnChecked) -> None:
    """Check all tasks; those of which nothing can be run need no system."""
    for case in cases:
        if isinstance(case.requests, CheckedTask):
            on_checked(case.requests)
    waiting = [case for case in cases if isinstance(case.requests, Requests)]
    if waiting:
        asyncio.run(_check(found, waiting, max_in_flight, on_checked))


async def _check(found: Settings, cases: Sequence[_Case], max_in_flight: int, on_checked: OnChecked) -> None:
    """Run the checks, and report each when it has a verdict. There is no deadline: the coordinator ends every session."""
    from polar.client import Client

    client = Client(found)
    async with client.table() as table:
        await client.unless_gone(_until_checked(client, table, cases, max_in_flight, on_checked))


async def _until_checked(
    client: Client, table: SessionTable, cases: Sequence[_Case], max_in_flight: int, on_checked: OnChecked
) -> None:
    uploads = Uploads(blob_store.of(client.settings), progress.upload_lines())
    requests = read_in_background(request for case in cases for request in case.submitted(uploads))
    feeding = asyncio.create_task(
        client.feed(
            warned_of_pools(client, requests),
            table,
            max_in_flight=max_in_flight,
            on_sent=lambda *_: None,
            stop_at_refusal=False,
        ),
        name="feed-checks",
    )
    pending = list(cases)

    def report() -> bool:
        """Report what has a verdict; whether all have one."""
        for case in list(pending):
            if (checked := case.checked(table)) is not None:
                pending.remove(case)
                on_checked(checked)
        return not pending

    try:
        while not feeding.done():
            report()
            await asyncio.wait({feeding}, timeout=LOOK_S)
        feeding.result()
        while not report():
            await table.until(lambda: any(case.checked(table) is not None for case in pending), LOOK_S)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


def _file(write: Path | None) -> AbstractContextManager[TextIO | None]:
    """The file of --write, line by line: what has ended is in it, whatever ends the command. Raises InputError."""
    if write is None:
        return nullcontext()
    try:
        return write.open("w", buffering=1)
    except OSError as error:
        raise InputError("--write", str(write), f"can't be written: {error.strerror}") from None


def _report(cases: Sequence[_Case], done: Sequence[CheckedTask], run: str, output: Format) -> None:
    """Print the verdicts in the order of the set."""
    places = {id(case.member): place for place, case in enumerate(cases)}
    ordered = sorted(done, key=lambda checked: places[id(checked.member)])
    if output is Format.JSON:
        print_json([_document(checked) for checked in ordered])
    elif ordered:
        show(["task", "verdict", ">solution", ">nothing", "session", "reason"], map(_cells, ordered))
        counts = counted(dict(Counter(checked.verdict.value for checked in ordered)))
        say(f"\n{len(ordered)} of {len(cases)} tasks checked in the run {run}: {counts}")
    if len(done) < len(cases):
        missing = len(cases) - len(done)
        note(f"{missing} of {len(cases)} tasks have no verdict yet; the same command with --run {run} goes on")


def _document(checked: CheckedTask) -> dict[str, Any]:
    return {
        "name": checked.member.name,
        "task_id": harbor_mapping.task_id(checked.member.name),
        "dataset": checked.member.dataset,
        "folder": str(checked.member.folder) if isinstance(checked.member, Member) else None,
        "verdict": checked.verdict.value,
        "reason": checked.reason,
        "solution": checked.solution and asdict(checked.solution),
        "nothing": checked.nothing and asdict(checked.nothing),
    }


def _cells(checked: CheckedTask) -> list[object]:
    return [
        checked.member.name,
        checked.verdict.value,
        checked.solution and checked.solution.reward,
        checked.nothing and checked.nothing.reward,
        checked.session_id,
        None if checked.reason is None else one_line(checked.reason),
    ]
