"""`polar export atif`, `harbor` and `inspect` write sessions in the forms that other programs show."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli import export_selection, progress
from polar.cli.options import Data, Format, OnlyRun, Output
from polar.cli.output import print_json, say
from topics.environment import settings
from topics.types import ids
from topics.types.errors import InputError

if TYPE_CHECKING:
    from analytics.queries.query import Reader
    from polar.export.sessions import Finished
    from polar.export.viewing import Written

Tokens = Annotated[
    bool,
    typer.Option("--no-tokens", help="Leave out token ids and logprobs, which make the files of long sessions large."),
]
NAME = "polar"
"""Name of a job or a log of sessions of several runs."""


def atif(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Gets a file for each session.")],
    task: export_selection.Task = None,
    run: OnlyRun = None,
    harness: export_selection.Harness = None,
    topic: export_selection.Topic = None,
    where: export_selection.Where = None,
    no_tokens: Tokens = False,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Write each session as a trajectory document of ATIF 1.8.

    Sessions whose file is there are left as they are.
    """
    from polar.export import viewing

    with _selected(out, data, task, run, harness, topic, where) as (reader, finished, bar):
        written = viewing.atif_documents(reader, finished, out, with_tokens=not no_tokens, on_progress=bar)
    _print(written, output)


def harbor(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of jobs, for `harbor view`.")],
    job: Annotated[
        str | None, typer.Option("--job", metavar="NAME", help="Name of the job. Default: the run, or `polar`.")
    ] = None,
    task: export_selection.Task = None,
    run: OnlyRun = None,
    harness: export_selection.Harness = None,
    topic: export_selection.Topic = None,
    where: export_selection.Where = None,
    no_tokens: Tokens = False,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Write the sessions as a job of Harbor, a trial each with its ATIF trajectory.

    `harbor view FOLDER` shows it. Trials that are there are left as they are.
    """
    from polar.export import viewing

    name = _checked("--job", job, run)
    with _selected(out, data, task, run, harness, topic, where) as (reader, finished, bar):
        written = viewing.harbor_job(reader, finished, out, name, with_tokens=not no_tokens, on_progress=bar)
    _print(written, output)


def inspect(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of logs, for `inspect view`.")],
    log: Annotated[
        str | None, typer.Option("--log", metavar="NAME", help="Name of the log. Default: the run, or `polar`.")
    ] = None,
    task: export_selection.Task = None,
    run: OnlyRun = None,
    harness: export_selection.Harness = None,
    topic: export_selection.Topic = None,
    where: export_selection.Where = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Write the sessions as a log of Inspect: a task is a sample, each of its sessions an epoch.

    `inspect view --log-dir FOLDER` shows it. A log of this name is replaced.
    """
    from polar.export import viewing

    name = _checked("--log", log, run)
    with _selected(out, data, task, run, harness, topic, where) as (reader, finished, bar):
        written = viewing.inspect_eval(reader, finished, out, name, on_progress=bar)
    _print(written, output)


@contextmanager
def _selected(
    out: Path,
    data: Path | None,
    task: list[str] | None,
    run: str | None,
    harness: str | None,
    topic: str | None,
    where: str | None,
) -> Iterator[tuple[Reader, list[Finished], Callable[[int, int], None]]]:
    """The lake, the sessions that the options select, and a bar that shows how many are done.

    Raises as `export_selection.selection`, `finished` and `writing_to` do.
    """
    found = settings.load(data)
    wanted = export_selection.selection(found, task, run, harness, topic, where)
    with (
        export_selection.finished(found, wanted) as (reader, finished),
        progress.bar("writing sessions") as bar,
        export_selection.writing_to(out),
    ):
        yield reader, finished, bar


def _checked(option: str, name: str | None, run: str | None) -> str:
    """The name of a job or a log, which becomes that of a folder or a file. Raises InputError."""
    chosen = name or run or NAME
    if not re.fullmatch(ids.RUN, chosen):
        raise InputError(option, chosen, f"expected a name that matches {ids.RUN}")
    return chosen


def _print(written: Written, output: Format) -> None:
    if output is Format.JSON:
        print_json({"path": str(written.path), "sessions": written.sessions, "kept": written.kept})
        return
    kept = f", {written.kept} of them by an earlier export" if written.kept else ""
    say(f"{written.path}: {written.sessions} sessions{kept}")
