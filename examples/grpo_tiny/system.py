"""The rollout system of a run: `polar up` against the engine, and a worker with as many slots as the engine likes calls at a time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.grpo_tiny.programs import Program, beside
from examples.vllm_cpu.serve import Server
from polar import NotReadyError, Settings, load_settings

SLOTS = 32
"""Sessions at once: the tiny model answers three times as many tokens a second to 32 as to 8."""
START_S = 120.0
LOOK_S = 0.1


@dataclass(frozen=True)
class System:
    """One that runs."""

    settings: Settings
    log: Path
    programs: Mapping[str, subprocess.Popen[bytes]]
    """By name, the engine's too."""

    def check(self) -> None:
        """Raises NotReadyError where one of its programs has ended."""
        for name, process in self.programs.items():
            if process.poll() is not None:
                raise NotReadyError(f"{name} ended with {process.returncode}; see its log in {self.log.parent}")


@contextmanager
def running(data: Path, engine: Server) -> Iterator[System]:
    """A whole Polar on `data`, until the block's end. Raises NotReadyError."""
    ready, log = data.parent / "polar.ready", data.parent / "polar.log"
    ready.unlink(missing_ok=True)
    with ExitStack() as stack:
        said = stack.enter_context(log.open("ab"))

        def polar(*arguments: str) -> subprocess.Popen[bytes]:
            """A `polar` command, that finds the evaluator in this checkout."""
            program = Program(sys.executable, "polar.cli", (*arguments, "--data", str(data)))
            return stack.enter_context(beside(program, said))

        up = polar("up", "--engine", engine.url, "--ready-file", str(ready))
        late = time.monotonic() + START_S
        while not ready.exists():
            if up.poll() is not None or time.monotonic() > late:
                raise NotReadyError(f"polar up didn't come up within {START_S:g} s; see {log}")
            time.sleep(LOOK_S)
        worker = polar("worker", "init", "run", "evaluate", "--concurrency", str(SLOTS))
        yield System(load_settings(data), log, {"vLLM": engine.process, "polar up": up, "polar worker": worker})
