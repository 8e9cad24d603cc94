"""`polar lake prune` removes what is old from the lake; `polar lake copy` copies the lake into a folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from polar.cli.options import Data, Format, Output
from polar.cli.output import note, print_json, show
from topics.environment import settings
from topics.types.errors import InputError

FIELD = "--older-than"
LEAST_DAYS = 14
"""Kafka keeps trajectories for so long."""
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
    from analytics.lake.retention import expire

    if not older_than >= LEAST_DAYS:
        raise InputError(
            FIELD, f"{older_than:g}", f"at least {LEAST_DAYS} days: younger tasks may still run, or be on Kafka"
        )
    there = places.lake(settings.load(data))
    before_ms = int((time.time() - older_than * DAY_S) * 1000)
    # A pin says that there is no lake; to write would make one.
    with there.pin(), there.writing() as writing:
        removed = expire(there, writing, before_ms, is_trial=dry_run)
    if output is Format.JSON:
        print_json({table: each._asdict() for table, each in removed.items()})
    elif not removed:
        note(f"nothing in {there.store.place} is older than {older_than:g} days")
    else:
        title = ">would be removed" if dry_run else ">rows removed"
        show(
            ["table", title, ">MB"], [[table, each.rows, f"{each.bytes / 1e6:.1f}"] for table, each in removed.items()]
        )


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
    from analytics.queries import views

    found = settings.load(data)
    target = Lake(folder.absolute() / found.namespace)
    copied = copying.copy(places.lake(found), target)
    database = target.folder.with_name(f"{found.namespace}.duckdb")
    views.write_database(database, target.folder, copied.manifest)
    if output is Format.JSON:
        print_json({"database": str(database), "files": copied.files, "bytes": copied.bytes})
    else:
        show(["database", ">new files", ">MB"], [[str(database), copied.files, f"{copied.bytes / 1e6:.1f}"]])
