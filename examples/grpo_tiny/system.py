"""The rollout system of a run: `polar up` against the engine, and a worker with as many slots as the engine likes calls at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from examples.vllm_cpu.serve import ROOT
from polar.settings import Settings, load
from polar.types.errors import NotReady

SLOTS = 32
"""Sessions at once: the tiny model answers three times as many tokens a second to 32 as to 8."""
START_S = 120.0
STOP_S = 30.0
LOOK_S = 0.1


@contextmanager
def running(data: Path, engine: str) -> Iterator[Settings]:
    """A whole Polar on `data`, until the block's end. Raises NotReady."""
    ready = data.parent / "polar.ready"
    ready.unlink(missing_ok=True)
    with ExitStack() as stack:
        up = stack.enter_context(_program("up", data, "--engine", engine, "--ready-file", str(ready)))
        late = time.monotonic() + START_S
        while not ready.exists():
            if up.poll() is not None or time.monotonic() > late:
                raise NotReady(f"polar up didn't come up within {START_S:g} s; see {data.parent / 'polar.log'}")
            time.sleep(LOOK_S)
        stack.enter_context(_program("worker", data, "init", "run", "evaluate", "--concurrency", str(SLOTS)))
        yield load(data)


@contextmanager
def _program(name: str, data: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A `polar` command beside this process, that finds the evaluator in this checkout; ended, and waited for."""
    with (data.parent / "polar.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "polar.cli", name, *arguments, "--data", str(data)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
