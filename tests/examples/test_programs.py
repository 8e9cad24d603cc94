"""Programs of the GRPO example's run: followed, killed, and ended with whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.grpo_tiny.programs import Program, ProgramError, beside, follow
from examples.grpo_tiny.system import System
from examples.vllm_cpu.serve import ROOT
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError

pytestmark = pytest.mark.contract

WAIT_S = 60.0
SPEAKER = "import sys, time\nprint('step 1: begins', flush=True)\n"
SLEEPER = SPEAKER + "time.sleep(600)\n"
STARTER = """
import os, signal, sys, time
from examples.grpo_tiny.programs import Program, beside
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with beside(Program(sys.executable, "speaks", (), os.environ), sys.stdout.fileno()):
    time.sleep(600)
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Program]:
    """One of this text."""

    def made(text: str) -> Program:
        (tmp_path / "speaks.py").write_text(text)
        return Program(sys.executable, "speaks", (), settings(tmp_path))

    return made


def settings(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}


def test_what_a_program_says_is_said(program: Callable[[str], Program]) -> None:
    said: list[str] = []
    follow(program(SPEAKER), said.append)
    assert said == ["step 1: begins"]


def test_a_program_that_ends_badly_is_an_error(program: Callable[[str], Program]) -> None:
    with pytest.raises(ProgramError, match="speaks ended with 7"):
        follow(program("import sys; sys.exit(7)"), print)


def test_a_program_is_killed_at_its_line(program: Callable[[str], Program]) -> None:
    said: list[str] = []
    follow(program(SLEEPER), said.append, kill_at="step 1: ")
    assert said == ["step 1: begins", "is killed"]


def test_a_program_that_ends_before_it_could_be_killed_is_an_error(program: Callable[[str], Program]) -> None:
    with pytest.raises(ProgramError, match="ended with 0, and wasn't killed at “step 2: ”"):
        follow(program(SPEAKER), print, kill_at="step 2: ")


def test_a_program_that_says_nothing_for_long_is_ended(
    program: Callable[[str], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.grpo_tiny.programs.SILENT_S", 2.0)
    with pytest.raises(ProgramError, match="speaks has said nothing for 2 s"):
        follow(program(SLEEPER), print)


def test_a_check_that_fails_ends_the_program_at_once(program: Callable[[str], Program]) -> None:
    said: list[str] = []

    def check() -> None:
        if said:
            raise NotReadyError("polar worker ended with -9")

    with pytest.raises(NotReadyError, match="worker ended"):
        follow(program(SLEEPER), said.append, check)


def test_a_system_says_which_of_its_programs_has_ended(program: Callable[[str], Program], tmp_path: Path) -> None:
    with beside(program(SLEEPER), subprocess.DEVNULL) as up, beside(program(SLEEPER), subprocess.DEVNULL) as worker:
        system = System(Settings(data=tmp_path), tmp_path / "polar.log", {"polar up": up, "polar worker": worker})
        system.check()
        worker.kill()
        worker.wait(WAIT_S)
        with pytest.raises(NotReadyError, match="polar worker ended with -9; see its log in "):
            system.check()


STUBBORN = f"""
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{SPEAKER}subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
time.sleep(600)
"""


@pytest.mark.parametrize(("number", "text"), [(signal.SIGTERM, SLEEPER), (signal.SIGKILL, STUBBORN)])
def test_no_program_and_none_of_its_group_outlives_its_starter(
    number: int, text: str, program: Callable[[str], Program], tmp_path: Path
) -> None:
    program(text)
    with subprocess.Popen([sys.executable, "-c", STARTER], env=settings(tmp_path), stdout=subprocess.PIPE) as starter:
        try:
            assert starter.stdout is not None
            assert starter.stdout.readline() == b"step 1: begins\n"
            starter.send_signal(number)
            # All of them hold the pipe's other end: it ends when all have.
            starter.communicate(timeout=WAIT_S)
        finally:
            starter.kill()
