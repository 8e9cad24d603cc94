"""`polar watch`: what goes on, until Ctrl-C: a page on a terminal, else a line when something has changed, or JSON for programs.

Shows only what `analytics/live/fold.py` folds. The terminal comes back as it was, however the command is told to end; Kafka going away is
shown and waited out.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.console import Console
from rich.live import Live as Display

from polar.cli import running
from polar.cli.options import Data, Format, Output
from polar.cli.screen import Page, clock, in_words, summary
from topics.environment import settings

if TYPE_CHECKING:
    from analytics.live.fold import Trouble
    from analytics.live.following import Live

REFRESH_S = 0.5
LINE_S = 2.0
"""Between two lines, at least."""
ERRORS_A_LINE = 5
"""New errors told beside a line, at most; `polar sql` knows all."""


def watch(output: Output = Format.TABLE, data: Data = None) -> None:
    """Show stages, rates, rewards and errors as they change, until Ctrl-C; with --format json a line twice a second."""
    found = settings.load(data)
    running.serve(lambda stop: _watch(found, output, stop))


async def _watch(found: settings.Settings, output: Format, stop: asyncio.Event) -> None:
    from analytics.live.following import Live

    console = Console()
    async with Live(found) as live:
        if output is Format.JSON:
            await _print_json(live, stop)
        elif console.is_terminal and not console.is_dumb_terminal:
            await _draw(live, console, f"polar watch: {found.namespace} at {found.bootstrap}", stop)
        else:
            await _print_lines(live, stop)


async def _draw(live: Live, console: Console, title: str, stop: asyncio.Event) -> None:
    # Drawn by us alone, not by rich's thread: a page is whole or not there.
    with Display(console=console, screen=True, auto_refresh=False) as display:
        while not stop.is_set():
            display.update(Page(live.snapshot(), title), refresh=True)
            await _rest(REFRESH_S, stop)


async def _print_json(live: Live, stop: asyncio.Event) -> None:
    while not stop.is_set():
        typer.echo(msgspec.json.encode(live.snapshot()))
        await _rest(REFRESH_S, stop)


async def _print_lines(live: Live, stop: asyncio.Event) -> None:
    shown = ""
    known: set[Trouble] = set()
    while not stop.is_set():
        snapshot = live.snapshot()
        line = summary(snapshot)
        if line != shown:
            typer.echo(f"{clock(snapshot.at)}  {line}")
            shown = line
        for error in [one for one in snapshot.errors if one not in known][:ERRORS_A_LINE][::-1]:
            typer.echo(f"{clock(error.at)}  {in_words(error)}")
        known = set(snapshot.errors)
        await _rest(LINE_S, stop)


async def _rest(pause_s: float, stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await stop.wait()
