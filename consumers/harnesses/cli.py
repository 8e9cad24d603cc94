"""An agent CLI on this host: one version, installed once into the user's cache, shared by all sessions.

Owns what doesn't depend on the registry: the folder, the lock under which one process at a time installs a CLI, progress, and the
message after a failure. An installation runs in a process of its own (`python -m consumers.harnesses.install pi`), so a worker that
stops doesn't wait for it. Downloads lie beside the installation: another try continues with them, and success deletes them. `npm.py`
and `pypi.py` own how a registry's CLIs are installed and verified; each preset owns its CLI's arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar, Generic

import structlog

from consumers.harnesses.base import S, checked_settings
from consumers.runtimes.base import Runtime
from topics.environment import cache
from topics.types.errors import NotReadyError
from topics.types.task import AgentSpec

INSTALL_S = 840.0
"""Limit for one installation: less than other processes wait for it (`cache.WAIT_S`)."""
PROGRESS_S = 3.0
"""Between two lines of progress: often enough to show that it works, without filling a log."""
OUTPUT_LIMIT = 1000
"""Characters of an installer's output that an error repeats."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Failure:
    """The meaning of an installer's output."""

    message: str
    """The part of the output that shows the cause."""
    is_unreachable: bool = False
    is_disk_full: bool = False


@dataclass(frozen=True)
class Cli(ABC):
    """An agent CLI of a registry, at one version."""

    installer: ClassVar[str]
    """The program that installs CLIs of this registry."""
    registry_variable: ClassVar[str]
    """The environment variable that makes the installer use another registry."""

    name: str
    """First part of the name of its entry in the cache."""
    package: str
    version: str
    megabytes: int
    """Approximate size on disk after the installation."""

    @property
    def entry(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def folder(self) -> Path:
        return cache.root() / self.entry

    @abstractmethod
    def command(self) -> tuple[str, ...]:
        """The command that starts it, without arguments. Raises NotReadyError if the host can't run it."""

    @abstractmethod
    def is_whole(self, folder: Path) -> bool:
        """Whether everything that its installer recorded is there, in this version."""

    @abstractmethod
    def runs_on(self) -> str:
        """The program that its installer runs on, with version and path, for people. Raises NotReadyError if that program doesn't run."""

    @abstractmethod
    def registry_url(self) -> str:
        """The registry that the installer is configured for. Raises NotReadyError if the installer doesn't run."""

    @abstractmethod
    def _steps(self, folder: Path, downloads: Path) -> Iterable[tuple[str, ...]]:
        """The installer's commands, in order. They keep their downloads in `downloads`."""

    def _seal(self, folder: Path) -> None:  # noqa: B027 - not needed if the installer keeps a record
        """Record what was installed, after a complete installation."""

    @abstractmethod
    def _failure(self, output: str) -> Failure:
        """The meaning of the installer's output."""

    def install(self, announce: Callable[[str], None]) -> Path:
        """Install it in the user's cache and return its folder. `announce` gets lines of progress. Raises NotReadyError, CacheError."""
        self.runs_on()
        return cache.installed(
            self.entry, lambda folder: self._build(folder, announce), whole=self.is_whole, announce=announce
        )

    def _build(self, folder: Path, announce: Callable[[str], None]) -> None:
        downloads = cache.root() / f".{self.entry}.downloads"
        what = f"{self.package} {self.version}"
        announce(f"installing {what} ({self.megabytes} MB) from {self.registry_url()} into {self.folder}")
        end = time.monotonic() + INSTALL_S
        for step in self._steps(folder, downloads):
            with subprocess.Popen(
                step, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            ) as installer:
                try:
                    output = self._watch(installer, end, folder, downloads, announce)
                finally:
                    installer.kill()
            if installer.returncode != 0:
                raise NotReadyError(self._why(output))
        self._seal(folder)
        shutil.rmtree(downloads, ignore_errors=True)
        announce(f"{what} is installed")

    def _watch(
        self,
        installer: subprocess.Popen[str],
        end: float,
        folder: Path,
        downloads: Path,
        announce: Callable[[str], None],
    ) -> str:
        """Wait for the installer's end; its stderr."""
        while True:
            try:
                return installer.communicate(timeout=PROGRESS_S)[1]
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    raise NotReadyError(
                        f"{self.installer} has not installed {self.package} {self.version} within {INSTALL_S / 60:.0f} minutes; "
                        "the next try continues with its downloads"
                    ) from None
                unpacked = f"{_megabytes(folder)} of {self.megabytes} MB unpacked"
                announce(f"{self.name}: {_megabytes(downloads)} MB downloaded, {unpacked}")

    def _why(self, output: str) -> str:
        """A message about a failed installation: what failed, and what to do."""
        failure = self._failure(output)
        what = f"{self.installer} could not install {self.package} {self.version} from {self.registry_url()}"
        if failure.is_unreachable:
            return (
                f"{what}: it can't be reached ({failure.message}). Let this machine reach it (behind a proxy: HTTPS_PROXY), "
                f"or name another registry ({self.registry_variable}=URL), or copy {self.folder} from another machine."
            )
        if failure.is_disk_full:
            needed = f"{2 * self.megabytes} MB"
            return f"{what}: the disk of {cache.root()} is full. Free {needed}, or set POLAR_CACHE to a folder with {needed}."
        message = " ".join(failure.message.split())[:OUTPUT_LIMIT] or "nothing"
        return f"{what}; the next use tries again. {self.installer} reported: {message}"


class CliHarness(Generic[S]):
    """A preset for such a CLI; see `base.Harness`."""

    cli: ClassVar[Cli]
    settings_type: type[S]
    """The settings that a task may have."""

    def __init__(self, agent: AgentSpec) -> None:
        self._settings = checked_settings(agent, self.settings_type)

    @property
    def tools(self) -> tuple[Path, ...]:
        return (self.cli.folder,)

    async def install(self) -> None:
        """Install it in a process of its own, with progress in our log; a cancellation kills that process. Raises NotReadyError."""
        self.cli.command()
        if self.cli.is_whole(self.cli.folder):
            return
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "consumers.harnesses.install"),
            f"{type(self).__module__}:{type(self).__qualname__}",
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stderr is not None
        last = ""
        try:
            async for line in process.stderr:
                last = line.decode(errors="replace").strip()
                log.info(last, action="harness.install", harness=self.cli.name)
            if await process.wait() != 0:
                raise NotReadyError(last or f"the installation of {self.cli.name} failed without a message")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


async def write_json(runtime: Runtime, path: PurePosixPath, value: object) -> None:
    """Write a CLI's settings."""
    await runtime.write_file(path, json.dumps(value).encode())


def lines_after(mark: str, output: str) -> str:
    """The lines of an installer's output that begin with `mark`, without it; the whole output if no line does."""
    return " ".join(re.findall(rf"^{mark}(.*)", output, re.MULTILINE)) or output


def _megabytes(folder: Path) -> int:
    """Disk usage of the files below `folder`, which may come and go meanwhile."""
    blocks = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                blocks += Path(parent, name).lstat().st_blocks
    return blocks * 512 // 1_000_000
