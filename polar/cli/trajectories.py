"""`polar trajectories` reads committed records of a trajectories topic, up to its end or until Ctrl-C.

Programs rely on the JSON of a line: fields may only be added. Lines and rows are written as they are read, so that memory doesn't grow
with the topic: a task's in the order of the log, different tasks' in any order.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from polar.cli import process, progress
from polar.cli.options import Data, OnlyRun, checked_run
from polar.cli.output import escaped_line, json_line, note, say, show
from polar.show.trajectory import fields, line, side_calls
from topics.environment import settings
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError
from topics.types.trajectory import Trajectory
from topics.waiting.first_done import first_done


class Layout(StrEnum):
    TABLE = "table"
    JSONL = "jsonl"
    PARQUET = "parquet"


READ_S = 3600.0
"""Deadline for reading the existing records; Kafka is known to answer by then."""
COLUMNS = ["session", "status", ">reward", ">turns", ">side", ">sampled", ">trainable", ">traces", "error"]


def trajectories(
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new trajectories until Ctrl-C.")] = False,
    topic: Annotated[
        str | None,
        typer.Option(metavar="T", help="`eval`, or a task's output_topic. Default: the trajectories for training."),
    ] = None,
    task: Annotated[list[str] | None, typer.Option(metavar="TASK", help="Only this task. Repeatable.")] = None,
    run: OnlyRun = None,
    layout: Annotated[
        Layout,
        typer.Option(
            "--format",
            help="jsonl, parquet: one line or row per trajectory, with its tokens, unsorted.",
        ),
    ] = Layout.TABLE,
    data: Data = None,
) -> None:
    """Print trajectories, one for each sample."""
    checked_run(run)
    found = settings.load(data)
    missing = dict.fromkeys((f"run {run}",) if run is not None and not task else task or ())
    with _writer(layout, follow) as write:

        def write_selected(trajectory: Trajectory) -> None:
            if (not task or trajectory.task_id in task) and run in (None, trajectory.run):
                missing.pop(trajectory.task_id if task else f"run {run}", None)
                write(trajectory)

        prints = follow or layout is not Layout.TABLE
        process.serve(lambda stop: _read(found, topic, write_selected, stop if follow else None, prints=prints))
    if missing and not follow:
        note(f"no trajectory yet of {', '.join(missing)}; `polar status` knows the tasks")


@contextmanager
def _writer(layout: Layout, follow: bool) -> Iterator[Callable[[Trajectory], None]]:
    """Writes trajectories. A table without --follow and a Parquet file are complete at the end of the context."""
    if layout is Layout.JSONL:
        yield lambda trajectory: typer.echo(json_line(line(trajectory)))
    elif layout is Layout.PARQUET:
        from polar.cli import parquet

        with parquet.TrajectoryFile(parquet.stdout()) as file:
            yield lambda trajectory: file.add(fields(trajectory, msgspec.structs.asdict))
    elif follow:
        yield lambda trajectory: say(_one_line(trajectory))
    else:
        kept: list[Trajectory] = []
        yield kept.append
        kept.sort(key=lambda one: (one.task_id, one.sample_index))
        show(COLUMNS, map(_row, kept))


async def _read(
    found: Settings, topic: str | None, write: Callable[[Trajectory], None], stop: asyncio.Event | None, *, prints: bool
) -> None:
    """Write every trajectory up to the topic's current end, then new ones until `stop`. `prints`: `write` prints to stdout at once."""
    from polar.table import require_topic
    from topics import trajectories
    from topics.log.follow import Follower, Since

    name = trajectories.output_named(topic, found.namespace)
    await require_topic(found, trajectories.TOPIC)
    if name:
        await require_output(found, name)

    def on_record(record: object, _: object) -> None:
        if isinstance(record, Trajectory):
            write(record)

    follower = Follower(found, trajectories.topic(name), on_record, since=Since.BEGINNING, committed=True)
    start = follower.start(READ_S)
    is_shown = prints and sys.stdout.isatty()
    await (start if is_shown else progress.reading(start, lambda: follower.progress, "trajectories"))
    try:
        if stop is not None:
            await first_done(stop, follower.failed)
    finally:
        await follower.stop()


async def require_output(found: Settings, name: str) -> None:
    """Raise NotReadyError if no output topic has this name. The first task with this output creates it."""
    from topics import trajectories
    from topics.log import admin

    prefix = f"{trajectories.TOPIC.full_name(found.namespace)}."
    there = [one.name.removeprefix(prefix) for one in await admin.listing(found) if one.name.startswith(prefix)]
    if name not in there:
        known = ", ".join(there) or "none"
        raise NotReadyError(f"no output topic {prefix}{name}; there are: {known} (those for training: without --topic)")


def _row(trajectory: Trajectory) -> list[object]:
    stats, error = trajectory.stats, trajectory.error
    return [
        trajectory.session_id,
        trajectory.status.value,
        trajectory.reward,
        stats.answered,
        side_calls(trajectory),
        stats.sampled_tokens,
        stats.trainable_tokens,
        stats.traces,
        f"{error.stage} {error.kind.value}/{error.code}" if error else None,
    ]


def _one_line(trajectory: Trajectory) -> str:
    session_id, *values = _row(trajectory)
    named = zip(COLUMNS[1:], values, strict=True)
    facts = ", ".join(f"{name.removeprefix('>')} {value}" for name, value in named if value is not None)
    return escaped_line(f"{session_id}  {facts}")
