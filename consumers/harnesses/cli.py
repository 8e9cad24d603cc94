"""An agent CLI on this host: one version, installed once into the user's cache, shared by all sessions.

Owns what doesn't depend on the registry: the folder, the lock under which one process at a time installs a CLI, progress, and the
message after a failure. An installation runs in a process of its own (`python -m consumers.harnesses.install pi`), so a worker that
stops doesn't wait for it. Downloads lie beside the installation: another try continues with them, and success deletes them. `npm.py`
and `pypi.py` own how a registry's CLIs are installed and when they are complete; `manifest.py` and `watch.py` find what was changed
since; each preset owns its CLI's arguments.

A CLI comes from a committed lock (`locks/`) that has a hash of every archive and no address. An installed folder is read-only. A process
verifies all of it before the first use; later, before each session, it asks whether any of it was touched, and verifies again if so.
What fails is installed again, never used.

A task may choose another version (`agent.version`). That version has no lock: the installer resolves its dependencies, and the
installation has an entry of its own, so it never passes for a locked one of a later Polar.
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
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import ClassVar, Generic, Self
from weakref import WeakKeyDictionary

import structlog

from consumers.harnesses import manifest
from consumers.harnesses.base import Home, S, checked_settings
from consumers.harnesses.preset import Client
from consumers.harnesses.watch import Watch
from topics.environment import cache
from topics.types.agent import AgentSpec
from topics.types.errors import InputError, NotReadyError

INSTALL_S = 840.0
"""Limit for one installation: less than other processes wait for it (`cache.WAIT_S`)."""
PROGRESS_S = 3.0
"""Between two lines of progress: often enough to show that it works, without filling a log."""
ASK_S = 8.0
"""Limit for a registry to list a package's versions: `submit` waits for it, and npm or pip takes seconds to start on a busy machine."""
SHOWN = 5
"""Number of versions that a refusal names."""
RELEASE = re.compile(r"[0-9.]+")
"""A version that a refusal may name: a nightly build may be newer than all releases, and there are hundreds."""
OUTPUT_LIMIT = 1000
"""Characters of an installer's output that an error repeats."""
VERIFICATIONS = 3
"""Limit for verifications in a row. The second follows an installation; more mean that something keeps on writing there."""
NO_SUCH_VERSION = 4
"""Exit code of the process that installs a CLI, if the registry lacks the version; its last line has the reason."""
LOCKS = Path(__file__).with_name("locks")

log = structlog.get_logger()


@dataclass(frozen=True)
class Failure:
    """The meaning of an installer's output."""

    message: str
    """The part of the output that shows the cause."""
    is_unreachable: bool = False
    is_disk_full: bool = False
    lacks_version: bool = False
    """The registry was asked, and has the CLI in no such version."""


@dataclass(frozen=True)
class Cli(ABC):
    """An agent CLI of a registry, at one version."""

    installer: ClassVar[str]
    """The program that installs CLIs of this registry."""
    version_form: ClassVar[str]
    """Regular expression of one exact version: the installer takes other texts for ranges."""
    registry_variable: ClassVar[str]
    """The environment variable that makes the installer use another registry."""
    lock_suffix: ClassVar[str]

    name: str
    """First part of the name of its entry in the cache."""
    package: str
    version: str
    megabytes: int
    """Approximate size on disk after the installation."""
    locks: Path = field(default=LOCKS, kw_only=True)
    """The folder with its lock."""
    is_locked: bool = field(default=True, kw_only=True)
    """Whether its packages come from its lock; otherwise the installer resolves them."""

    def at(self, version: str | None) -> Self:
        """This CLI at another version, without a lock. None: as it is. Raises InputError for a text that is no exact version."""
        if version is None or version == self.version:
            return self
        if re.fullmatch(self.version_form, version) is None:
            raise InputError(
                "agent.version", version, f"must be one exact version of {self.package}, like {self.version}"
            )
        return replace(self, version=version, is_locked=False)

    @property
    def entry(self) -> str:
        return f"{self.name}-{self.version}{'' if self.is_locked else '-unlocked'}"

    @property
    def folder(self) -> Path:
        return cache.root() / self.entry

    @property
    def manifest(self) -> Path:
        """The hashes of what was installed; beside the folder, so that no sandbox has it."""
        return cache.root() / f"{self.entry}.manifest.json"

    @property
    def lock(self) -> Path:
        """The list of its packages with their hashes; `relock.py` writes it."""
        return self.locks / f"{self.name}{self.lock_suffix}"

    def fault(self, folder: Path) -> str | None:
        """Why the installation in `folder` must not be used, with the first file that differs; None if all of it is as installed."""
        if found := manifest.difference(folder, self.manifest):
            return found
        return None if self.is_whole(folder) else f"{folder} is incomplete"

    @abstractmethod
    def command(self) -> tuple[str, ...]:
        """The command that starts it, without arguments. Raises NotReadyError if the host can't run it."""

    @abstractmethod
    def is_whole(self, folder: Path) -> bool:
        """Whether everything that its installer recorded is there, in this version. Doesn't read it."""

    @abstractmethod
    def runs_on(self) -> str:
        """The program that its installer runs on, with version and path, for people. Raises NotReadyError if that program doesn't run."""

    @abstractmethod
    def registry_url(self) -> str:
        """The registry that the installer is configured for. Raises NotReadyError if the installer doesn't run."""

    @abstractmethod
    def listed_versions(self, limit_s: float) -> list[str]:
        """The package's versions in the configured registry, newest first. Raises NotReadyError if it doesn't answer within `limit_s`."""

    def is_among(self, versions: list[str]) -> bool:
        """Whether the installer would find this version among these."""
        return self.version in versions

    @abstractmethod
    def _steps(self, folder: Path, downloads: Path) -> Iterable[tuple[str, ...]]:
        """The installer's commands, in order. They keep their downloads in `downloads`."""

    def _seal(self, folder: Path) -> None:  # noqa: B027 - not needed if the installer keeps a record
        """Record what was installed, after a complete installation."""

    @abstractmethod
    def _failure(self, output: str) -> Failure:
        """The meaning of the installer's output."""

    def install(self, announce: Callable[[str], None]) -> Path:
        """Install it in the user's cache and return its folder. `announce` gets lines of progress.

        Raises InputError if it isn't locked and the registry lacks its version, NotReadyError, and CacheError.
        """
        self.runs_on()

        def whole(folder: Path) -> bool:
            fault = self.fault(folder)
            if fault is not None:
                announce(f"{fault}; {self.name} is installed again")
            return fault is None

        return cache.installed(self.entry, lambda folder: self._build(folder, announce), whole=whole, announce=announce)

    def _build(self, folder: Path, announce: Callable[[str], None]) -> None:
        downloads = cache.root() / f".{self.entry}.downloads"
        what = f"{self.package} {self.version}"
        if self.is_locked and not self.lock.is_file():
            raise NotReadyError(
                f"{self.lock} is missing: the packages of {what} with their hashes. Where a registry can be reached, run: "
                f"python -m consumers.harnesses.relock {self.name}"
            )
        how = "" if self.is_locked else " without a lock"
        announce(f"installing {what}{how} ({self.megabytes} MB) from {self.registry_url()} into {self.folder}")
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
                raise self._error(output)
        self._seal(folder)
        if not self.is_whole(folder):
            doubt = f"does {self.lock} have those of this platform?"
            if not self.is_locked:
                doubt = (
                    "is its program where the preset's own version has it, and are there packages for this platform?"
                )
            raise NotReadyError(f"{self.installer} installed {what} without all of its packages; {doubt}")
        manifest.seal(folder, self.manifest)
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

    def _error(self, output: str) -> InputError | NotReadyError:
        failure = self._failure(output)
        if failure.lacks_version and not self.is_locked:
            reason = f"{self.installer} finds no such version of {self.package} in {self.registry_url()}"
            return InputError("agent.version", self.version, reason)
        return NotReadyError(self._why(failure))

    def _why(self, failure: Failure) -> str:
        """A message about a failed installation: what failed, and what to do."""
        what = f"{self.installer} could not install {self.package} {self.version} from {self.registry_url()}"
        if failure.is_unreachable:
            return (
                f"{what}: it can't be reached ({failure.message}). Let this machine reach it (behind a proxy: HTTPS_PROXY), "
                f"or name another registry ({self.registry_variable}=URL), "
                f"or copy {self.folder} and {self.manifest} from another machine (cp -a)."
            )
        if failure.is_disk_full:
            needed = f"{2 * self.megabytes} MB"
            return f"{what}: the disk of {cache.root()} is full. Free {needed}, or set POLAR_CACHE to a folder with {needed}."
        message = " ".join(failure.message.split())[:OUTPUT_LIMIT] or "nothing"
        return f"{what}; the next use tries again. {self.installer} reported: {message}"


class CliHarness(Generic[S]):
    """A preset for such a CLI; see `base.Harness`."""

    cli: Cli
    """The class has the CLI at the preset's own version, an object at the version of its task."""
    settings_type: type[S]
    """The settings that a task may have."""
    mcp_transports: ClassVar[tuple[str, ...]] = ()
    """The transports by which it connects to MCP servers."""
    skills_folder: ClassVar[str | None] = None
    instructions_file: ClassVar[str | None] = None
    """Where it looks for its user's skills, and its user's own instructions, below its home; None: nowhere."""
    client: ClassVar[Client | None] = None

    def __init__(self, agent: AgentSpec) -> None:
        self._settings = checked_settings(agent, self.settings_type)
        self._servers = agent.mcp_servers
        self.cli = self.cli.at(agent.version)

    def check_version(self) -> None:
        """See `base.Harness`. The registry is asked once a process: a program may submit thousands of tasks."""
        cli = self.cli
        if cli.is_locked or cli in _checked:
            return
        with contextlib.suppress(NotReadyError):  # the installation will ask again
            found = cli.listed_versions(ASK_S)
            if not cli.is_among(found):
                releases = [version for version in found if RELEASE.fullmatch(version)]
                reason = (
                    f"{cli.installer} finds no such version of {cli.package}; the newest are: {', '.join(releases[:SHOWN])}; "
                    f"without it, {type(self).cli.version} is used"
                )
                raise InputError("agent.version", cli.version, reason)
        _checked.add(cli)

    @property
    def registry_name(self) -> str:
        """The name by which another process finds this class."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    @property
    def tools(self) -> tuple[Path, ...]:
        return (self.cli.folder,)

    async def install(self) -> None:
        """Install it in a process of its own, with progress in our log; a cancellation kills that process.

        Raises InputError for a version that the registry lacks, and NotReadyError.
        """
        self.cli.command()
        if await self._is_untouched():
            return
        locks = _verifying.setdefault(asyncio.get_running_loop(), defaultdict(asyncio.Lock))
        async with locks[self.cli.folder]:
            for _ in range(VERIFICATIONS):
                if await self._is_untouched():
                    return
                # The watch begins before the verification, so no change falls between them.
                exists = self.cli.folder.is_dir()
                watch = await asyncio.to_thread(Watch, self.cli.folder) if exists else None
                await self._verify()
                if watch is not None:
                    _watches[self.cli.folder] = watch
        if not await self._is_untouched():
            raise NotReadyError(f"{self.cli.folder} keeps changing; find out what writes there")

    async def _is_untouched(self) -> bool:
        """Whether this process has verified the installation, and nothing has changed since."""
        watch = _watches.get(self.cli.folder)
        if watch is None:
            return False
        if (touched := await asyncio.to_thread(watch.changed)) is None:
            return True
        if _watches.get(self.cli.folder) is watch:
            del _watches[self.cli.folder]
            log.warning("a harness was touched", action="harness.touched", harness=self.cli.name, path=touched)
        return False

    async def _verify(self) -> None:
        """Verify it in full, in a process of its own, which installs it if it isn't as it should be."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "consumers.harnesses.install"),
            self.registry_name,
            self.cli.version,
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
            code = await process.wait()
            if code == NO_SUCH_VERSION:
                raise InputError("agent.version", self.cli.version, last)
            if code != 0:
                raise NotReadyError(last or f"the installation of {self.cli.name} failed without a message")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


_checked: set[Cli] = set()
"""CLIs whose versions `check_version` found, or couldn't ask for."""
_watches: dict[Path, Watch] = {}
"""By folder: what this process has verified."""
_verifying: WeakKeyDictionary[asyncio.AbstractEventLoop, defaultdict[Path, asyncio.Lock]] = WeakKeyDictionary()
"""By event loop and folder: sessions that begin at once verify once."""


async def write_json(home: Home, path: PurePosixPath, value: object) -> None:
    """Write a CLI's settings."""
    await home.write_file(path, json.dumps(value).encode())


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
