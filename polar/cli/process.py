"""How a command runs as a process: its event loop with signals, its log on stderr, its ready file. Results have stdout for themselves."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from topics.environment.redaction import redacted

REPEAT_S = 10.0
"""A message is logged at most once in this time: aiokafka reports a missing broker hundreds of times a second."""

OPEN_FILES = 1 << 20
"""Linux' usual hard limit of open files."""


def serve(main: Callable[[asyncio.Event], Awaitable[None]], hurry: asyncio.Event | None = None) -> None:
    """Run `main` to its end. SIGINT, SIGTERM or SIGHUP sets the event that `main` gets; a second one ends the process at once.

    With `hurry`, a second signal sets `hurry`, and a third one of the same kind ends the process. At SIGUSR1 the process writes to stderr
    what its threads and tasks are doing, and goes on.
    """
    _raise_open_files()
    asyncio.run(_serve(main, hurry))


def _raise_open_files() -> None:
    """Allow this process as many open files as it may allow itself: the usual soft limit, 1,024, is for programs that call select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, OPEN_FILES) if hard != resource.RLIM_INFINITY else OPEN_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


async def _serve(main: Callable[[asyncio.Event], Awaitable[None]], hurry: asyncio.Event | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if hurry is None or stop.is_set():
            loop.remove_signal_handler(number)
        if hurry is not None and stop.is_set():
            hurry.set()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal, number)
    # Not a handler of the loop, which may be what hangs.
    signal.signal(signal.SIGUSR1, lambda *_: _write_stacks(loop))
    await main(stop)


def _write_stacks(loop: asyncio.AbstractEventLoop) -> None:
    """Where each thread and each task is; without values of variables, which may be secrets."""
    faulthandler.dump_traceback(sys.stderr)
    for task in asyncio.all_tasks(loop):
        stack = traceback.StackSummary.extract(_awaiting(task.get_coro())).format()
        sys.stderr.write(f"Task {task.get_name()} (most recent call last):\n{''.join(stack)}")
    sys.stderr.flush()


def _awaiting(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames and lines of a coroutine and of those that it awaits. `Task.print_stack` has only the first."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame, frame.f_lineno
        coroutine = coroutine.cr_await


def write_ready(file: Path, urls: Mapping[str, object]) -> None:
    """Write the addresses in use as JSON, atomically: another process waits for the file."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(urls))
    temporary.replace(file)


def log_warnings() -> None:
    """For commands: log our warnings only. The command itself reports a missing broker better than aiokafka."""
    _configure(logging.WARNING)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def log_events() -> None:
    """For services: log events with their times."""
    _configure(logging.INFO)
    logging.getLogger("aiokafka").setLevel(logging.WARNING)


class _RateLimit(logging.Filter):
    """Passes a message, identified by its template, once every REPEAT_S."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        message = (record.name, str(record.msg))
        if time.monotonic() - self._last.get(message, -REPEAT_S) < REPEAT_S:
            return False
        self._last[message] = time.monotonic()
        return True


class _Redacting(logging.Formatter):
    """Formats a record without keys and secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


def _configure(level: int) -> None:
    handler = logging.StreamHandler()
    handler.addFilter(_RateLimit())
    handler.setFormatter(_Redacting("%(asctime)s [%(levelname)s] %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    # Not the default exception formatter: it prints local variables, keys among them.
    renderer = structlog.dev.ConsoleRenderer(
        colors=False, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
            lambda _, __, line: redacted(str(line)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
