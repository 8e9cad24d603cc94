"""An agent CLI on this host: at one version, installed once into the user's cache, shared by all sessions.

Owns what is the same whatever registry a CLI comes from: where it lies, that one process at a time installs it, the progress that is
told, and the sentence on an installation that failed. It runs in a process of its own (`python -m consumers.harnesses.install pi`), so
that a worker that stops doesn't wait for it. What has been downloaded lies beside the installation, where a second try goes on with it,
and is gone with success. How a registry's CLIs are installed and when one is whole is `npm`'s and `pypi`'s; what it is called with is its
preset's.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from pathlib import Path
from typing import ClassVar

import structlog

from topics.environment import cache
from topics.types.errors import NotReady

INSTALL_S = 840.0
"""For one installation: less than others wait for it (`cache.WAIT_S`)."""
TELL_S = 3.0
"""Between two lines of progress."""
SAID_LIMIT = 1000
"""Characters of an installer's words that an error repeats."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Failure:
    """What an installer's words come to."""

    words: str
    """The part of them that tells."""
    is_unreachable: bool = False
    is_disk_full: bool = False


@dataclass(frozen=True)
class Cli(ABC):
    """An agent CLI of a registry, at one version."""

    installer: ClassVar[str]
    """The program that installs it."""
    registry_variable: ClassVar[str]
    """The environment variable that names another registry to the installer."""

    name: str
    """Begins the name of its entry in the cache."""
    package: str
    version: str
    megabytes: int
    """On disk once installed, about."""

    @property
    def entry(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def folder(self) -> Path:
        return cache.root() / self.entry

    @abstractmethod
    def command(self) -> tuple[str, ...]:
        """What starts it, without arguments. Raises NotReady where the host lacks what it runs on."""

    @abstractmethod
    def is_whole(self, folder: Path) -> bool:
        """Whether all that its installer recorded is there, in this version."""

    @abstractmethod
    def runs_on(self) -> str:
        """For people: what its installer runs on, with version and path. Raises NotReady where that doesn't run."""

    @abstractmethod
    def registry_url(self) -> str:
        """Where the installer is configured to fetch from. Raises NotReady where it doesn't run."""

    @abstractmethod
    def _steps(self, folder: Path, downloads: Path) -> Iterable[tuple[str, ...]]:
        """The installer's commands, one after another; what they fetch is kept in `downloads`."""

    def _seal(self, folder: Path) -> None:  # noqa: B027 - an installer that keeps a record of its own needs none of ours
        """Write down what was installed, when all of it was."""

    @abstractmethod
    def _failure(self, said: str) -> Failure:
        """What the installer's words mean."""

    def install(self, announce: Callable[[str], None]) -> Path:
        """Have it in the user's cache; its folder. `announce` is told the progress, a line each. Raises NotReady, CacheError."""
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
                    said = self._watch(installer, end, folder, downloads, announce)
                finally:
                    installer.kill()
            if installer.returncode != 0:
                raise NotReady(self._why(said))
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
        """What it wrote to stderr until its end."""
        while True:
            try:
                return installer.communicate(timeout=TELL_S)[1]
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    raise NotReady(
                        f"{self.installer} has not installed {self.package} {self.version} within {INSTALL_S / 60:.0f} minutes; "
                        "the next try goes on with what it has downloaded"
                    ) from None
                unpacked = f"{_megabytes(folder)} of {self.megabytes} MB unpacked"
                announce(f"{self.name}: {_megabytes(downloads)} MB downloaded, {unpacked}")

    def _why(self, said: str) -> str:
        """A sentence on an installer that failed, by what it said: what, and what to do."""
        failure = self._failure(said)
        what = f"{self.installer} could not install {self.package} {self.version} from {self.registry_url()}"
        if failure.is_unreachable:
            return (
                f"{what}: it can't be reached ({failure.words}). Give this machine a way there (behind a proxy: HTTPS_PROXY), "
                f"or name a registry that it reaches ({self.registry_variable}=URL), or copy {self.folder} from another machine."
            )
        if failure.is_disk_full:
            room = f"{2 * self.megabytes} MB of room"
            return f"{what}: the disk of {cache.root()} is full. Set POLAR_CACHE to a folder with {room}, or make it there."
        words = " ".join(failure.words.split())[:SAID_LIMIT] or "nothing"
        return f"{what}; it is tried again at the next use. {self.installer} said: {words}"


class CliHarness:
    """What presets of such CLIs share; see `base.Harness`."""

    cli: ClassVar[Cli]

    async def install(self) -> None:
        """In a process of its own, its progress in our log; cancelled, it dies with its installer. Raises NotReady."""
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
        said = ""
        try:
            async for line in process.stderr:
                said = line.decode(errors="replace").strip()
                log.info(said, action="harness.install", harness=self.cli.name)
            if await process.wait() != 0:
                raise NotReady(said or f"the installation of {self.cli.name} ended without a word")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def lines_after(mark: str, said: str) -> str:
    """What stands after `mark` at the beginnings of an installer's lines; all that it said where no line has it."""
    return " ".join(re.findall(rf"^{mark}(.*)", said, re.MULTILINE)) or said


def _megabytes(folder: Path) -> int:
    """What the files below `folder` take on the disk; they come and go meanwhile."""
    blocks = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                blocks += Path(parent, name).lstat().st_blocks
    return blocks * 512 // 1_000_000
