"""Starts the other programs; each ends when this process has ended, for whatever reason (`polar/embedded/parent_watch.py`).

They run in sessions of their own: Ctrl-C reaches this program alone, which stops the others one by one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

from examples.vllm_cpu.serve import PARENT_WATCH, ROOT

STOP_S = 30.0
LOOK_S = 0.2
SILENT_S = 1200.0
"""A program that says nothing for so long hangs: a trainer speaks once in 900 s at least."""


class ProgramError(RuntimeError):
    """A program ended otherwise than it was to."""


@dataclass(frozen=True)
class Program:
    """`python -m module arguments…`."""

    python: str | Path
    module: str
    arguments: tuple[str, ...] = ()
    settings: Mapping[str, str] | None = None
    """Its environment; None: this program's, with this checkout on the path."""


@contextmanager
def beside(program: Program, output: IO[bytes] | int) -> Iterator[subprocess.Popen[bytes]]:
    """It runs until the block's end; then SIGTERM, and where that isn't enough SIGKILL."""
    process = subprocess.Popen(
        [program.python, "-P", PARENT_WATCH, program.module, *program.arguments],
        env=program.settings or {**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=None if output == subprocess.PIPE else output,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert process.stdin is not None, "a pipe"
        process.stdin.close()


def follow(
    program: Program,
    say: Callable[[str], None],
    check: Callable[[], None] = lambda: None,
    kill_at: str | None = None,
) -> None:
    """Run it to its end, and say what it says; SIGKILL at its first line that begins with `kill_at`.

    Raises ProgramError where it ends otherwise than well, or than by that, and where it says nothing for `SILENT_S`; and what `check`
    raises, which is asked as long as it runs.
    """
    heard = time.monotonic()

    def hear(said: str) -> None:
        nonlocal heard
        heard = time.monotonic()
        say(said)

    with beside(program, subprocess.PIPE) as process:
        reader = Thread(target=_read, args=(process, hear, kill_at), daemon=True)
        reader.start()
        while process.poll() is None:
            check()
            if time.monotonic() > heard + SILENT_S:
                raise ProgramError(f"{program.module} has said nothing for {SILENT_S:g} s")
            try:
                process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                continue
        reader.join(STOP_S)
    if kill_at is None and process.returncode != 0:
        raise ProgramError(f"{program.module} ended with {process.returncode}")
    if kill_at is not None and process.returncode != -signal.SIGKILL:
        raise ProgramError(f"{program.module} ended with {process.returncode}, and wasn't killed at “{kill_at}”")


def _read(process: subprocess.Popen[bytes], say: Callable[[str], None], kill_at: str | None) -> None:
    assert process.stdout is not None, "a pipe"
    with process.stdout as lines:
        for line in lines:
            said = line.decode(errors="replace").rstrip()
            say(said)
            if kill_at is not None and said.startswith(kill_at):
                process.kill()
                for rest in lines:
                    say(rest.decode(errors="replace").rstrip())
                say("is killed")
                return
