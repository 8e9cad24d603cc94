"""A whole system for a benchmark: `polar up` as a user starts it, in a temporary folder, and what its parts use.

Everything runs in processes of its own; all of it is stopped, and the folder gone, when the block ends.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import say
from polar.client import Client
from topics.environment import settings
from topics.types.session import Status
from topics.types.task import parse

READY_S = 90.0
STOP_S = 30.0
FINISH_S = 240.0
PARTS = {
    "kafka.Kafka": "Kafka",
    "polar.scripted": "scripted engine",
    "proxy": "proxy",
    "coordinator": "fanout, coordinator, builder",
    "evaluate": "init, run, evaluate",
    "analytics": "analytics",
}
"""What `polar up` starts, by a word of its command line."""
FORK_SERVER = "fork server"
HARNESSES = "supervisors, harnesses"
"""What the stage workers start, which isn't there before the first."""


class System:
    """A running `polar up`."""

    def __init__(self, data: Path, process: subprocess.Popen[bytes]) -> None:
        self.data = data
        self.settings = settings.load(data)
        self._up = psutil.Process(process.pid)

    def parts(self) -> dict[str, list[psutil.Process]]:
        """The processes of each part: what `polar up` started for it, and what that started."""
        children = self._up.children()
        servers = [child for child in children if FORK_SERVER in _title(child)]
        forked = [part for server in servers for part in server.children()]
        found = {"polar up": [self._up], FORK_SERVER: servers}
        for child in (*(child for child in children if child not in servers), *forked):
            name = next(name for word, name in PARTS.items() if word in _title(child).split())
            below = child.children(recursive=True)
            if name == PARTS["evaluate"] and below:
                found[name], found[HARNESSES] = [child], below
            else:
                found[name] = [child, *below]
        return found

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that each part has used, sandboxed programs that have ended included."""
        return {name: sum(map(cpu, processes)) for name, processes in self.parts().items()}

    async def run(self, body: dict[str, Any]) -> float:
        """Seconds from handing in a task until all its trajectories are out. SystemExit where a session isn't COMPLETED."""
        task = parse(body)
        loop = asyncio.get_running_loop()
        client = Client(self.settings)
        async with client.table({task.task_id}) as table:
            began = loop.time()
            await client.submit([task], table)
            finished = await table.until(lambda: table.is_finished(task.task_id), FINISH_S)
            took = loop.time() - began
            ended = table.ended(task.task_id)
        if not finished or any(session.status is not Status.COMPLETED for session in ended):
            raise SystemExit(
                f"{task.task_id}: {len(ended)} sessions of {task.num_samples} ended, the last {ended[-1:]}"
            )
        return took


@asynccontextmanager
async def up(*options: str) -> AsyncIterator[System]:
    """`polar up` with these options, from when everything answers until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        ready = Path(folder, "ready")
        data = Path(folder, "data")
        with child("-m", "polar.cli", "up", "--data", str(data), "--ready-file", str(ready), *options) as process:
            await written(ready, READY_S)
            yield System(data, process)


@contextmanager
def child(
    *arguments: str, python: str = sys.executable, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process with nothing of the user's settings, ended by SIGTERM; its words go to standard error."""
    kept = {"POLAR_CACHE"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("POLAR_") or name in kept}
    process = subprocess.Popen(
        [python, *arguments], env=inherited | dict(environment or {}), stdout=sys.stderr, stderr=sys.stderr
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            say(f"process {process.pid} didn't stop within {STOP_S:.0f} s; killing it")
            process.kill()
            process.wait()


async def written(file: Path, deadline_s: float) -> str:
    """The text of a file that another process writes when it is ready."""
    try:
        async with asyncio.timeout(deadline_s):
            while not (file.exists() and (text := file.read_text())):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise SystemExit(f"{file.name} wasn't there within {deadline_s:.0f} s") from None
    return text


def _title(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def cpu(process: psutil.Process) -> float:
    """Seconds of CPU that a process and its children that have ended have used."""
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system
