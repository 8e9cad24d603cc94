"""`polar watch` shows the system's activity until Ctrl-C: a page on a terminal, otherwise a line per change, or JSON for programs.

It shows only what `analytics/live/fold.py` folds. However the command ends, also by the key `q`, the terminal is restored. While Kafka is
away, the page says so and waits.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.live import Live as Display

from polar.cli import process
from polar.cli.options import Data, Format, Output
from polar.cli.output import json_line, say
from polar.cli.screen import Page, clock, in_words, summary
from topics.environment import settings
from topics.waiting.first_done import first_done

if TYPE_CHECKING:
    from analytics.live.fold import AttemptError
    from analytics.live.view import Live

REFRESH_S = 0.5
"""Time between two pages or JSON lines."""
LINE_S = 2.0
"""Least time between two lines."""
ERRORS_A_LINE = 5
"""Most new errors printed with a line; `polar sql` has all."""


def watch(output: Output = Format.TABLE, data: Data = None) -> None:
    """Show stages, rates, rewards and errors until Ctrl-C or q. --format json prints a line twice a second."""
    found = settings.load(data)
    process.serve(lambda stop: _watch(found, output, stop))


async def _watch(found: settings.Settings, output: Format, stop: asyncio.Event) -> None:
    from analytics.live.view import Live

    console = Console()
    async with Live(found) as live:
        if output is Format.JSON:
            await _print_json(live, stop)
        elif console.is_terminal and not console.is_dumb_terminal:
            await _draw(live, console, f"polar watch: {found.namespace} at {found.bootstrap}", stop)
        else:
            await _print_lines(live, stop)


async def _draw(live: Live, console: Console, title: str, stop: asyncio.Event) -> None:
    # We refresh, not rich's thread: no page is drawn in part.
    with _ended_by_q(stop), Display(console=console, screen=True, auto_refresh=False) as display:
        while not stop.is_set():
            display.update(Page(live.snapshot(), title), refresh=True)
            await first_done(stop, timeout_s=REFRESH_S)


@contextmanager
def _ended_by_q(stop: asyncio.Event) -> Iterator[None]:
    """While the context lasts, the key `q` sets `stop`. The terminal's modes are restored afterwards.

    Nothing is read if standard input isn't a terminal, or another process has its foreground: the kernel would stop this one.
    """
    terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    if not _may_read(terminal):
        yield
        return
    before = termios.tcgetattr(terminal)

    def on_keys() -> None:
        keys = os.read(terminal, 1024)
        if not keys:  # the terminal is gone
            loop.remove_reader(terminal)
        if b"q" in keys:
            stop.set()

    tty.setcbreak(terminal)  # keys come at once, and Ctrl-C stays a signal
    loop.add_reader(terminal, on_keys)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _may_read(terminal: int) -> bool:
    """Whether the file is a terminal that this process may read from."""
    try:
        return os.isatty(terminal) and os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return True  # not the terminal that controls this process, so it has no foreground to ask for


async def _print_json(live: Live, stop: asyncio.Event) -> None:
    while not stop.is_set():
        typer.echo(json_line(live.snapshot()))
        await first_done(stop, timeout_s=REFRESH_S)


async def _print_lines(live: Live, stop: asyncio.Event) -> None:
    shown = ""
    known: set[AttemptError] = set()
    while not stop.is_set():
        snapshot = live.snapshot()
        line = summary(snapshot)
        if line != shown:
            say(f"{clock(snapshot.at)}  {line}")
            shown = line
        for error in [one for one in snapshot.errors if one not in known][:ERRORS_A_LINE][::-1]:
            say(f"{clock(error.at)}  {in_words(error)}")
        known = set(snapshot.errors)
        await first_done(stop, timeout_s=LINE_S)
