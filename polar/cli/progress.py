"""Progress of long work on stderr: a bar on a terminal, otherwise a line every few seconds. Quick work shows nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from polar.cli.output import bars, counted, escaped, note, one_line
from polar.cli.status import of_task

if TYPE_CHECKING:
    from polar.embedded.distribution import Meter
    from polar.table import Refusal, SessionTable
    from polar.uploads import OnBytes

LOOK_S = 1.0
"""Least time between two reports on tasks."""
QUICK_S = 1.0
"""Reading that ends sooner shows no progress."""
STEP_S = 0.25
"""Time between two updates of a bar."""
LINE_S = 3.0
"""Least time between two lines without a terminal."""
LISTED = 16
"""Most rewards that a line lists. A larger group shows their number, mean and bars."""

T = TypeVar("T")
Position = Callable[[], tuple[int, int]]
"""Amount done, and total amount."""


class Throttled:
    """Prints notes, at most one every LINE_S."""

    def __init__(self) -> None:
        self._printed_at = -LINE_S

    def __call__(self, message: str) -> None:
        if time.monotonic() - self._printed_at >= LINE_S:
            self._printed_at = time.monotonic()
            note(message)


async def reading(work: Coroutine[Any, Any, T], position: Position, what: str) -> T:
    """The result of `work`, which reads `what` from Kafka. After a second, show its position.

    Not for work that prints to the same terminal: its lines and the bar would mix.
    """
    task = asyncio.create_task(work, name="read")
    try:
        await asyncio.wait({task}, timeout=QUICK_S)
        if not task.done():
            with bar(f"reading {what}") as show:
                while not task.done():
                    show(*position())
                    await asyncio.wait({task}, timeout=STEP_S)
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def download_bar() -> Meter | None:
    """Shows downloads of `System` as bars. None if stderr is no terminal."""
    return _downloading if Console(stderr=True).is_terminal else None


@contextmanager
def _downloading(total: int) -> Iterator[Callable[[int], None]]:
    with _progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn()) as bar:
        row = bar.add_task("downloading", total=total)
        yield lambda done: bar.update(row, completed=done)


def upload_lines() -> OnBytes:
    """Prints which file or folder is being read for the blob store, once reading has gone on for a second."""
    announce = Throttled()
    began = last = -LINE_S

    def on_bytes(path: Path, done: int, total: int) -> None:
        nonlocal began, last
        now = time.monotonic()
        if now - last >= LINE_S:
            began = now
        last = now
        if now - began >= QUICK_S:
            announce(f"uploading {path}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")

    return on_bytes


@contextmanager
def uploading() -> Iterator[OnBytes]:
    """Shows what is read for the blob store: nothing in the first second, then a bar, or lines if stderr is no terminal."""
    if not Console(stderr=True).is_terminal:
        yield upload_lines()
        return
    shown_at = time.monotonic() + QUICK_S - STEP_S
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        bar = _progress(*columns, transient=True)
        row: TaskID | None = None

        def on_bytes(path: Path, done: int, total: int) -> None:
            nonlocal shown_at, row
            if time.monotonic() - shown_at < STEP_S:
                return
            shown_at = time.monotonic()
            what = f"uploading {one_line(str(path))}"
            if row is None:
                stack.enter_context(bar)
                row = bar.add_task(what)
            bar.update(row, description=what, completed=done, total=total)

        yield on_bytes


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that disappears at its end; lines if stderr is no terminal."""
    if not Console(stderr=True).is_terminal:
        announce = Throttled()
        yield lambda done, total: announce(f"{what}: {done} of {total}")
        return
    with _progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), transient=True) as drawn:
        row = drawn.add_task(what, total=None)
        yield lambda done, total: drawn.update(row, completed=done, total=total or None)


def _progress(*columns: ProgressColumn, transient: bool = False) -> Progress:
    # rich would redirect stdout, which may be a result file, to the terminal.
    return Progress(*columns, console=Console(stderr=True), transient=transient, redirect_stdout=False)


async def until_finished(table: SessionTable, samples: Mapping[str, int]) -> None:
    """Wait until every session of these tasks (number of samples by id) has its trajectory, or its task was refused. Print each group's
    rewards when it ends.

    There is no deadline here: the coordinator has one for each state of each session.
    """
    total = sum(samples.values())
    groups = _Groups(table, samples)
    if not Console(stderr=True).is_terminal:
        async for ended, words in _summaries(table, samples):
            for line in groups.finished():
                typer.echo(escaped(line), err=True)
            typer.echo(escaped(f"{ended} of {total} sessions have ended: {words}"), err=True)
        return
    with _progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")) as bar:
        sessions = bar.add_task("", total=total)
        async for ended, words in _summaries(table, samples):
            for line in groups.finished():
                bar.console.print(Text(line))
            bar.update(sessions, completed=ended, description=words)


def refused(refusal: Refusal) -> str:
    """A sentence on a refused task."""
    return f"{refusal} (`polar dead-letters show {refusal.letter_id}`)"


class _Groups:
    """Reports each group once; the caller has reported tasks that were refused before."""

    def __init__(self, table: SessionTable, samples: Mapping[str, int]) -> None:
        self._table = table
        self._unreported = {task_id: count for task_id, count in samples.items() if task_id not in table.refusals}

    def finished(self) -> list[str]:
        """One line for each group that has ended, or was refused, since the last call."""
        names = [task_id for task_id in self._unreported if self._table.is_over(task_id)]
        return [self._line(task_id, self._unreported.pop(task_id)) for task_id in names]

    def _line(self, task_id: str, samples: int) -> str:
        if (refusal := self._table.refusals.get(task_id)) is not None:
            return one_line(refused(refusal))
        rows = {row.sample_index: row for row in self._table.ended(task_id)}
        rewards = [rows[index].reward if index in rows else None for index in range(samples)]
        known = [reward for reward in rewards if reward is not None]
        mean = f", mean {sum(known) / len(known):.4g}" if known else ""
        if samples > LISTED:
            return f"{task_id}: {len(known)} of {samples} have a reward{mean}  {bars(rewards)}"
        each = " ".join("–" if reward is None else f"{reward:.4g}" for reward in rewards)
        return f"{task_id}: rewards {each}{mean}  {bars(rewards)}"


async def _summaries(table: SessionTable, samples: Mapping[str, int]) -> AsyncIterator[tuple[int, str]]:
    """The number of ended sessions and a summary in words, at each change, at most every LOOK_S, until all have ended."""
    shown = None
    finished = False
    while not finished:
        finished = await table.until(lambda: all(map(table.is_over, samples)), LOOK_S)
        summary = _summary(table, samples)
        if summary != shown:
            yield summary
            shown = summary


def _summary(table: SessionTable, samples: Mapping[str, int]) -> tuple[int, str]:
    counts: Counter[str] = Counter()
    rewards: list[float] = []
    for task_id in samples:
        rewards += [row.reward for row in table.ended(task_id) if row.reward is not None]
        row: dict[str, Any] = of_task(task_id, samples[task_id], table)
        counts.update(row["statuses"] | row["phases"])
    mean = f"; mean reward {sum(rewards) / len(rewards):.4g}" if rewards else ""
    return sum(len(table.ended(task_id)) for task_id in samples), (counted(dict(counts)) or "waiting") + mean
