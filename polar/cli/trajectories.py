"""`polar trajectories`: reads a trajectories topic, committed records only, to its present end or for ever.

The JSON of a line is design: programs rely on its fields, which may only grow.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from polar.cli import progress, running
from polar.cli.options import Data
from polar.cli.output import note, show
from topics.environment import settings
from topics.environment.settings import Settings
from topics.types.errors import NotReady
from topics.types.trajectory import ExpandedTrace, Trajectory, expand
from topics.waiting.first_done import first_done


class Layout(StrEnum):
    """How trajectories are written."""

    TABLE = "table"
    JSONL = "jsonl"
    PARQUET = "parquet"


READ_S = 3600.0
"""To read what lies on the topic at the start; that Kafka answers is known by then."""
COLUMNS = ["session", "status", ">reward", ">turns", ">sampled", ">trainable", ">traces", "error"]


def trajectories(
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    topic: Annotated[
        str | None, typer.Option(metavar="T", help="`eval`, or a task's output_topic; else the trained ones.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(metavar="TASK", help="Of this task alone; may be repeated.")] = None,
    layout: Annotated[
        Layout, typer.Option("--format", help="jsonl, parquet: traces written out, a line or row each.")
    ] = Layout.TABLE,
    data: Data = None,
) -> None:
    """Show what came out: one trajectory for each sample."""
    found = settings.load(data)
    missing = dict.fromkeys(task or ())
    with _taking(layout, follow) as take:

        def take_asked(trajectory: Trajectory) -> None:
            if not task or trajectory.task_id in task:
                missing.pop(trajectory.task_id, None)
                take(trajectory)

        prints = follow or layout is not Layout.TABLE
        running.serve(lambda stop: _read(found, topic, take_asked, stop if follow else None, prints=prints))
    if missing and not follow:
        note(f"nothing has come out of {', '.join(missing)}; `polar status` knows the tasks")


@contextmanager
def _taking(layout: Layout, follow: bool) -> Iterator[Callable[[Trajectory], None]]:
    """What becomes of each trajectory; a table that isn't followed, and a Parquet file, are whole at the end."""
    if layout is Layout.JSONL:
        yield lambda trajectory: typer.echo(msgspec.json.encode(line(trajectory)))
    elif layout is Layout.PARQUET:
        from polar.cli import parquet

        with parquet.TrajectoryFile(parquet.stdout()) as file:
            yield file.add
    elif follow:
        yield lambda trajectory: typer.echo(_words(trajectory))
    else:
        kept: list[Trajectory] = []
        yield kept.append
        kept.sort(key=lambda one: (one.task_id, one.sample_index))
        show(COLUMNS, map(_row, kept))


async def _read(
    found: Settings,
    topic: str | None,
    take: Callable[[Trajectory], None],
    stop: asyncio.Event | None,
    *,
    prints: bool,
) -> None:
    """Give `take` every trajectory up to the topic's present end, then those that come until `stop`. `prints`: at once, to stdout."""
    from polar.client import require_topic
    from topics import trajectories
    from topics.log.follow import Follower, Since

    name = trajectories.output_named(topic, found.namespace)
    await require_topic(found, trajectories.TOPIC)
    if name:
        await _require_output(found, name)

    def on_record(record: object, _: object) -> None:
        if isinstance(record, Trajectory):
            take(record)

    follower = Follower(found, trajectories.topic(name), on_record, since=Since.BEGINNING, committed=True)
    start = follower.start(READ_S)
    is_shown = prints and sys.stdout.isatty()
    await (start if is_shown else progress.reading(start, lambda: follower.progress, "trajectories"))
    try:
        if stop is not None:
            await first_done(stop, follower.failed)
    finally:
        await follower.stop()


async def _require_output(found: Settings, name: str) -> None:
    """Raises NotReady where no output topic has this name; the first task that writes there makes it."""
    from topics import trajectories
    from topics.log import admin

    prefix = f"{trajectories.TOPIC.full_name(found.namespace)}."
    there = [one.name.removeprefix(prefix) for one in await admin.listing(found) if one.name.startswith(prefix)]
    if name not in there:
        known = ", ".join(there) or "none"
        raise NotReady(f"no output topic {prefix}{name}; there are: {known} (the trained ones: without --topic)")


def line(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as programs get it; per trace `token_ids`, `loss_mask` and `logprobs` are equally long."""
    return {
        "session_id": trajectory.session_id,
        "task_id": trajectory.task_id,
        "sample_index": trajectory.sample_index,
        "num_samples": trajectory.num_samples,
        "attempt": trajectory.attempt,
        "status": trajectory.status.value,
        "reward": trajectory.reward,
        "error": msgspec.to_builtins(trajectory.error),
        "builder": trajectory.builder,
        "harness": trajectory.harness,
        "traces": [_trace(expand(trajectory, trace)) for trace in trajectory.traces],
        "stats": msgspec.to_builtins(trajectory.stats),
        "metadata": json.loads(trajectory.metadata),
    }


def _trace(expanded: ExpandedTrace) -> dict[str, Any]:
    versions = dict.fromkeys(span.policy_version for span in expanded.spans)
    return {
        "trace_id": expanded.trace.trace_id,
        "token_ids": expanded.token_ids.tolist(),
        "loss_mask": expanded.loss_mask.tolist(),
        "logprobs": expanded.logprobs.tolist(),
        "policy_versions": list(versions),
        "calls": [
            {
                "call_id": span.call.call_id,
                "start": span.start,
                "end": span.end,
                "policy_version": span.policy_version,
                "sampling": msgspec.to_builtins(span.call.sampling),
            }
            for span in expanded.spans
        ],
        "kind": expanded.trace.kind,
        "reward": expanded.trace.reward,
        "finish_reason": expanded.trace.finish_reason,
    }


def _row(trajectory: Trajectory) -> list[object]:
    stats, error = trajectory.stats, trajectory.error
    return [
        trajectory.session_id,
        trajectory.status.value,
        trajectory.reward,
        stats.answered,
        stats.sampled_tokens,
        stats.trainable_tokens,
        stats.traces,
        f"{error.stage} {error.kind.value}/{error.code}" if error else None,
    ]


def _words(trajectory: Trajectory) -> str:
    """One trajectory as a line, for following."""
    session_id, *values = _row(trajectory)
    named = zip(COLUMNS[1:], values, strict=True)
    return f"{session_id}  " + ", ".join(
        f"{name.removeprefix('>')} {value}" for name, value in named if value is not None
    )
