"""Progress of submitted tasks on stderr: a bar on a terminal, else a line when something has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from polar.cli.status import of_task, said

if TYPE_CHECKING:
    from polar.client import SessionTable

LOOK_S = 1.0
"""At most so often is something said."""


async def until_finished(table: SessionTable, samples: Mapping[str, int]) -> None:
    """Return when every session of these tasks (id to number of samples) has its trajectory.

    There is no deadline here: the coordinator keeps one for each state of each session.
    """
    console = Console(stderr=True)
    total = sum(samples.values())
    if not console.is_terminal:
        async for ended, words in _standings(table, samples):
            typer.echo(f"{ended} of {total} sessions have ended: {words}", err=True)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as bar:
        sessions = bar.add_task("", total=total)
        async for ended, words in _standings(table, samples):
            bar.update(sessions, completed=ended, description=words)


async def _standings(table: SessionTable, samples: Mapping[str, int]) -> AsyncIterator[tuple[int, str]]:
    """How many sessions have ended, and in words how all stand; at each change, at most every LOOK_S, to the end."""
    shown = None
    finished = False
    while not finished:
        finished = await table.until(lambda: _is_finished(table, samples), LOOK_S)
        standing = _standing(table, samples)
        if standing != shown:
            yield standing
            shown = standing


def _is_finished(table: SessionTable, samples: Mapping[str, int]) -> bool:
    return all(table.is_finished(task_id) for task_id in samples)


def _standing(table: SessionTable, samples: Mapping[str, int]) -> tuple[int, str]:
    """How many sessions have ended, and in words how all of them stand."""
    counts: Counter[str] = Counter()
    rewards: list[float] = []
    for task_id in samples:
        rewards += [row.reward for row in table.ended(task_id) if row.reward is not None]
        row: dict[str, Any] = of_task(task_id, samples[task_id], table)
        counts.update(row["statuses"] | row["phases"])
    mean = f"; mean reward {sum(rewards) / len(rewards):.4g}" if rewards else ""
    return sum(len(table.ended(task_id)) for task_id in samples), (said(dict(counts)) or "waiting") + mean
