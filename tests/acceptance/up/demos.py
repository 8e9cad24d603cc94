"""`make demo` as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.up.running import environment
from tests.waiting import until

DEMO = Path(__file__).parents[3] / "examples" / "demo" / "run.py"
FOR_EVER = b'"script":"cache/2/3"'
"""In the engine's record: the engine has ordered a sample to run its tests until they pass."""
HALFWAY_S = 120.0
ENDS_S = 300.0


@dataclass
class Running:
    """A demo in a process group of its own, as a terminal would start it."""

    process: subprocess.Popen[str]
    began: float

    def ended(self) -> tuple[int, str]:
        """Exit code and all that it said, once it and all who speak through it have ended."""
        said, _ = self.process.communicate(timeout=ENDS_S)
        print(f"{time.monotonic() - self.began:.1f} s:\n{said}")
        return self.process.returncode, said

    def until_halfway(self, data: Path) -> None:
        """Return when the sample that will not end by itself has come so far."""
        record = data / "engine-record.jsonl"

        def is_halfway() -> bool:
            assert self.process.poll() is None, self.ended()
            return record.exists() and FOR_EVER in record.read_bytes()

        until(is_halfway, HALFWAY_S)

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)


@dataclass(frozen=True)
class DemoRun:
    """A demo that ran to its end: its data folder, and its output."""

    data: Path
    output: str

    @property
    def run(self) -> str:
        return run_of(self.output)


def run_of(said: str) -> str:
    """What the task ids of a demo end in."""
    (run,) = set(re.findall(r"^demo: submitting \w+-(\w{6}):", said, re.MULTILINE))
    return str(run)


@contextmanager
def demo(folder: Path, *options: str) -> Iterator[Running]:
    """A demo started in `folder`; killed at the end of the block if it hasn't ended by then."""
    process = subprocess.Popen(
        [sys.executable, str(DEMO), *options],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Running(process, time.monotonic())
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
