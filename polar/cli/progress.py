"""Progress of long work on stderr: a bar on a terminal, else a line now and then. What is quick says nothing of itself."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from polar.cli.output import bars, counted, note
from polar.cli.status import of_task

if TYPE_CHECKING:
    from polar.client import SessionTable
    from polar.embedded.distribution import Meter

LOOK_S = 1.0
"""At most so often is something said of tasks."""
QUICK_S = 1.0
"""Reading that takes no longer shows no progress."""
STEP_S = 0.25
LINE_S = 3.0
"""Between two lines where there is no terminal."""
LISTED = 16
"""Rewards that a line spells out; a larger group is its bars, mean and number."""

HowFar = Callable[[], tuple[int, int]]
"""How much is done, and of how much."""


async def reading(work: Coroutine[Any, Any, None], how_far: HowFar, what: str) -> None:
    """Await `work`, which reads `what` from Kafka; after a second, show how far it is. A follower's `how_far` tells in offsets.

    Not for work that prints to the same terminal: its lines and the bar would mix.
    """
    task = asyncio.create_task(work, name="read")
    try:
        await asyncio.wait({task}, timeout=QUICK_S)
        if not task.done():
            await _watched(task, how_far, what)
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _watched(task: asyncio.Task[None], how_far: HowFar, what: str) -> None:
    with _bar(f"reading {what}") as show:
        while not task.done():
            show(*how_far())
            await asyncio.wait({task}, timeout=STEP_S)


def download_bar() -> Meter | None:
    """What shows a download as a bar, for `System`; None where stderr is no terminal."""
    return _downloading if Console(stderr=True).is_terminal else None


@contextmanager
def _downloading(total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
        row = bar.add_task("downloading", total=total)
        yield lambda done: bar.update(row, completed=done)


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows what is done of a total; gone from the terminal at its end."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(what)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # stdout may be a file that results go to; rich would turn it to the terminal.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        row = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(row, completed=done, total=total or None)


class _Lines:
    """A line when it begins, and then every LINE_S."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said_at: float | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._said_at is None or time.monotonic() - self._said_at >= LINE_S:
            self._said_at = time.monotonic()
            note(f"{self._what}: {done} of {total}")


def now_and_then() -> Callable[[str], None]:
    """Says on stderr what it is given, at most every LINE_S."""
    said_at = -LINE_S

    def say(words: str) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= LINE_S:
            said_at = time.monotonic()
            note(f"{words}")

    return say


async def until_finished(table: SessionTable, samples: Mapping[str, int]) -> None:
    """Return when every session of these tasks (id to number of samples) has its trajectory; say each group's rewards when it has ended.

    There is no deadline here: the coordinator keeps one for each state of each session.
    """
    console = Console(stderr=True)
    total = sum(samples.values())
    groups = _Groups(table, samples)
    if not console.is_terminal:
        async for ended, words in _standings(table, samples):
            for line in groups.finished():
                typer.echo(line, err=True)
            typer.echo(f"{ended} of {total} sessions have ended: {words}", err=True)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, redirect_stdout=False) as bar:
        sessions = bar.add_task("", total=total)
        async for ended, words in _standings(table, samples):
            for line in groups.finished():
                bar.console.print(Text(line))
            bar.update(sessions, completed=ended, description=words)


class _Groups:
    """Tells of each group once."""

    def __init__(self, table: SessionTable, samples: Mapping[str, int]) -> None:
        self._table = table
        self._left = dict(samples)

    def finished(self) -> list[str]:
        """A line for each group that has ended since it was asked last."""
        names = [task_id for task_id in self._left if self._table.is_finished(task_id)]
        return [self._line(task_id, self._left.pop(task_id)) for task_id in names]

    def _line(self, task_id: str, samples: int) -> str:
        rows = {row.sample_index: row for row in self._table.ended(task_id)}
        rewards = [rows[index].reward if index in rows else None for index in range(samples)]
        known = [reward for reward in rewards if reward is not None]
        mean = f", mean {sum(known) / len(known):.4g}" if known else ""
        if samples > LISTED:
            return f"{task_id}: {len(known)} of {samples} have a reward{mean}  {bars(rewards)}"
        each = " ".join("–" if reward is None else f"{reward:.4g}" for reward in rewards)
        return f"{task_id}: rewards {each}{mean}  {bars(rewards)}"


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
    return sum(len(table.ended(task_id)) for task_id in samples), (counted(dict(counts)) or "waiting") + mean
