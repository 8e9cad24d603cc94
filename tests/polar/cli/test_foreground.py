"""A program in the foreground, with this interpreter as its parent and signals at the worst moments."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

pytestmark = pytest.mark.contract

WAIT_S = 30.0
PARENT = """\
import os, signal, subprocess, sys
from polar.cli.foreground import Foreground, Interrupted

foreground = Foreground()
"""
RUN = """
with foreground.guarded():
    sys.exit(foreground.run([sys.executable, "-c", sys.argv[1]], os.environ))
"""
COUNTING = """\
import signal, sys, time
counts = {signal.SIGINT: 0, signal.SIGQUIT: 0, signal.SIGTERM: 0}

def count(number, _):
    counts[number] += 1
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(counts[signal.SIGINT] + counts[signal.SIGQUIT])

for number in counts:
    signal.signal(number, count)
print("ready", flush=True)
time.sleep(60)
"""
"""Exits at SIGTERM with the number of signals before it."""


@contextmanager
def parent(script: str, *arguments: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT + script, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **more},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def lines(process: subprocess.Popen[str], expected: Sequence[str]) -> None:
    assert process.stdout is not None
    assert [process.stdout.readline().strip() for _ in expected] == expected


@pytest.mark.parametrize(
    ("keys", "number"), [(b"\x03", "SIGINT"), (b"\x1c", "SIGQUIT")], ids=("interrupt key", "quit key")
)
def test_a_key_of_the_terminal_reaches_the_program_once_whatever_stdin_is(keys: bytes, number: str) -> None:
    ours, its = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(its, termios.TIOCSCTTY, 0)

    try:
        with parent(RUN, COUNTING, start_new_session=True, preexec_fn=take_terminal, pass_fds=[its]) as process:
            lines(process, ["ready"])
            # Two signals at once would be one, so the program is first.
            process.send_signal(signal.SIGSTOP)
            os.write(ours, keys)
            lines(process, [number])
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 1
    finally:
        os.close(ours)
        os.close(its)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_a_signal_of_another_process_is_passed_on(number: signal.Signals) -> None:
    with parent(RUN, COUNTING, start_new_session=True) as process:
        lines(process, ["ready"])
        process.send_signal(number)
        lines(process, [number.name])
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 1


def test_a_signal_during_the_start_reaches_the_program() -> None:
    """Else the program would go on without its session."""
    during = """
class Popen(subprocess.Popen):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Popen
"""
    with parent(during + RUN, "import time; time.sleep(60)") as process:
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM


def test_a_signal_during_a_start_that_fails_is_not_lost() -> None:
    during = """
class Popen(subprocess.Popen):
    def __init__(self, *arguments, **more):
        os.kill(os.getpid(), signal.SIGTERM)
        super().__init__(*arguments, **more)

subprocess.Popen = Popen
with foreground.guarded():
    try:
        foreground.run(["/no/such/program"], os.environ)
    except Interrupted as interrupted:
        sys.exit(interrupted.exit_code)
"""
    with parent(during) as process:
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM


def test_what_is_ignored_stays_ignored_by_the_program_as_well() -> None:
    with parent(
        RUN,
        f"import signal; print(signal.getsignal(signal.SIGHUP).name)\n{COUNTING}",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ) as process:
        lines(process, ["SIG_IGN", "ready"])
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_further_signals_do_not_put_off_the_end() -> None:
    script = """
import polar.cli.foreground
polar.cli.foreground.GRACE_S = 1
with foreground.guarded():
    print(foreground.run([sys.executable, "-c", sys.argv[1]], os.environ), flush=True)
"""
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    )
    with parent(script, stubborn) as process:
        lines(process, ["ready"])
        deadline = time.monotonic() + WAIT_S / 2
        while process.poll() is None:
            assert time.monotonic() < deadline
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        lines(process, [str(128 + signal.SIGKILL)])


def test_a_signal_before_the_start_interrupts_once() -> None:
    """Signals don't interrupt the close of the session."""
    script = """
with foreground.guarded():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except Interrupted as interrupted:
        os.kill(os.getpid(), signal.SIGINT)
        print("closed", interrupted.exit_code)
"""
    with parent(script) as process:
        lines(process, ["closed 130"])
        assert process.wait(WAIT_S) == 0


def test_what_follows_the_program_is_not_interrupted() -> None:
    script = """
with foreground.guarded():
    foreground.finish()
    os.kill(os.getpid(), signal.SIGTERM)
    print("closed")
"""
    with parent(script) as process:
        lines(process, ["closed"])
        assert process.wait(WAIT_S) == 0
