"""`polar lake prune` removes what is old from the lake; `polar lake copy` copies the lake into a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli import progress
from polar.cli.options import Data, Format, Output
from polar.cli.output import note, print_json, show
from topics.environment import settings
from topics.types.errors import InputError, NotReadyError

if TYPE_CHECKING:
    from analytics.lake.manifest import Lake

FIELD = "--older-than"
LEAST_DAYS = 14
"""Kafka keeps trajectories for so long."""
MOST_DAYS = 36_500
"""A hundred years; the times of older records can't be computed."""
DAY_S = 86_400

app = typer.Typer(no_args_is_help=True, help="The lake, which `polar sql` queries.")


@app.command()
def prune(
    older_than: Annotated[
        float, typer.Option(FIELD, metavar="DAYS", help=f"Age of a task's newest record, at least {LEAST_DAYS} days.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.", show_default=False)
    ] = False,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Remove tasks that nothing was written about for so long, with all of their sessions, calls and traces.

    Heartbeats and dead letters of that age go as well. Writers and queries go on meanwhile; the disk's room is free some ten minutes later,
    once a writer runs. Kafka, trajectories on it and the blob store aren't touched.
    """
    from analytics.lake import places
    from analytics.lake.retention import expire, old_rows

    if not older_than >= LEAST_DAYS:
        raise InputError(
            FIELD, f"{older_than:g}", f"at least {LEAST_DAYS} days: younger tasks may still run, or be on Kafka"
        )
    if older_than > MOST_DAYS:
        raise InputError(FIELD, f"{older_than:g}", f"at most {MOST_DAYS} days")
    there = places.lake(settings.load(data))
    before_ms = int((time.time() - older_than * DAY_S) * 1000)
    # A pin says that there is no lake; to write would make one.
    with _reporting(there), there.pin():
        if dry_run:
            removed = old_rows(there, before_ms, _progress_lines())
        else:
            with there.writing() as writing:
                removed = expire(there, writing, before_ms, announce=_progress_lines())
    if output is Format.JSON:
        print_json({table: each._asdict() for table, each in removed.items()})
    elif not removed:
        note(f"nothing in {there.store.place} is older than {older_than:g} days")
    else:
        titles = (">would be removed", ">MB, about") if dry_run else (">rows removed", ">MB")
        show(["table", *titles], [[table, each.rows, f"{each.bytes / 1e6:.1f}"] for table, each in removed.items()])


@app.command()
def copy(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder, or an earlier copy.")],
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Copy the lake as it is now into a folder, while writers go on. A later call copies only what is new.

    Beside the copy in FOLDER/NAMESPACE is FOLDER/NAMESPACE.duckdb, a database for any DuckDB. `POLAR_LAKE=FOLDER polar sql` queries it.
    """
    from analytics.lake import copying, places
    from analytics.lake.manifest import Lake
    from analytics.lake.store import FolderStore
    from analytics.queries import views

    found = settings.load(data)
    target = FolderStore(folder.absolute() / found.namespace)
    source = places.lake(found)
    with _reporting(source):
        copied = copying.copy(source, Lake(target))
        views.write_database(target.database, target.folder, copied.manifest)
    if output is Format.JSON:
        print_json({"database": str(target.database), "files": copied.files, "bytes": copied.bytes})
    else:
        show(["database", ">new files", ">MB"], [[str(target.database), copied.files, f"{copied.bytes / 1e6:.1f}"]])


@contextmanager
def _reporting(lake: Lake) -> Iterator[None]:
    """Raise NotReadyError if a disk or a server fails."""
    try:
        yield
    except OSError as error:
        raise NotReadyError(
            f"the work on the lake in {lake.store.place} ended: {error}; run the command again. New files need room beside the old ones"
        ) from error


def _progress_lines() -> Callable[[str], None]:
    """Prints a line every few seconds, once the work has gone on for a second."""
    announce, began = progress.Throttled(), time.monotonic()

    def on_progress(sentence: str) -> None:
        if time.monotonic() - began >= progress.QUICK_S:
            announce(sentence)

    return on_progress
