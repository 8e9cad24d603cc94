"""`polar up` as a process, with the commands that its user types."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import until
from topics import trajectories
from topics.environment import settings
from topics.environment.settings import read_env_file
from topics.log.owner import read_back
from topics.log.partition import partition_of_session
from topics.types.trajectory import Trajectory

POLAR = str(Path(sys.executable).with_name("polar"))
READY_S = 120.0
STOP_S = 45.0
COMMAND_S = 180.0


class Up:
    """A running `polar up`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.data = folder / "data"
        self.ready_file = folder / "ready"
        self.output = folder / "up.log"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [POLAR, "up", "--data", str(self.data), "--ready-file", str(self.ready_file), *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment(),
            )
        try:
            until(lambda: self.ready_file.exists() or self.process.poll() is not None, READY_S)
            assert self.ready_file.exists(), self.output.read_text()
        except BaseException:
            self.process.kill()
            raise

    @property
    def addresses(self) -> dict[str, str]:
        return read_env_file(self.data / "polar.env")

    def polar(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [POLAR, *arguments, "--data", str(self.data)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            env=environment(),
            check=False,
        )

    def submit(self, task_id: str, command: str, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
        shell = {"harness": "shell", "custom_shell": {"command": command}}
        body = {"task_id": task_id, "instruction": "say hello", "agent": shell} | more
        return self.polar("submit", "-", *options, stdin=json.dumps(body))

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def parts(self, word: str) -> list[int]:
        """Process ids of the parts that have this word in their command line: one, or none while it is started again."""
        children = psutil.Process(self.process.pid).children()
        forked = [part for one in children if "fork server" in " ".join(command_line(one)) for part in one.children()]
        return [one.pid for one in (*children, *forked) if word in " ".join(command_line(one)).split()]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("POLAR_") or name == "POLAR_CACHE"}


def engine_record(up: Up) -> list[dict[str, Any]]:
    """The calls that the scripted engine answered, by its own record."""
    return [json.loads(line) for line in (up.data / "engine-record.jsonl").read_text().splitlines()]


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def is_gone(process: psutil.Process) -> bool:
    """Ended; what its new parent hasn't collected yet has ended, too."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def trajectory(up: Up, session_id: str) -> Trajectory:
    """A finished session's trajectory, from the topic."""

    async def read() -> list[object]:
        found = settings.load(up.data)
        topic = trajectories.TOPIC.full_name(found.namespace)
        partition = partition_of_session(session_id, trajectories.TOPIC.embedded_partitions)
        return [trajectories.CODEC.decode(record.value or b"") async for record in read_back(found, topic, partition)]

    (found,) = [one for one in asyncio.run(read()) if isinstance(one, Trajectory) and one.session_id == session_id]
    return found
