"""Agent CLIs of the Python Package Index, each in a virtual environment of its own, with the Python that runs Polar.

Owns the check that an installation is complete. Packages come as wheels only: a build would run code of its own on the
worker. A CLI is started as a module by its environment's python. Its scripts can't be used:
they contain the folder in which they were made, and a finished installation is moved.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from consumers.harnesses.cli import OUTPUT_LIMIT, Cli, Failure, lines_after
from topics.types.errors import NotReadyError

RECORD = Path("installed.json")
"""Names the `dist-info` folders of all packages; in the environment's folder."""
INDEX = "https://pypi.org/simple"
OPTIONS = ("--quiet", "--no-input", "--disable-pip-version-check", "--timeout=15", "--retries=2")
WHEELS = "--only-binary=:all:"

_VERSIONS = re.compile(r"^Available versions: (.+)$", re.MULTILINE)
_UNREACHABLE = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ConnectionReset|RemoteDisconnected|ProxyError|SSLError"
)


@dataclass(frozen=True)
class PypiCli(Cli):
    """A CLI of the Python Package Index."""

    installer = "pip"
    version_form = r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?"
    registry_variable = "PIP_INDEX_URL"
    lock_suffix = ".txt"

    beside: tuple[str, ...]
    """Other packages with versions: undeclared dependencies, and packages that shape its requests."""
    module: str
    """The module for `python -m`."""

    def command(self) -> tuple[str, ...]:
        # -B: its folder is read-only, but root could write compiled modules there.
        return (str(_python(self.folder)), "-B", "-m", self.module)

    def is_whole(self, folder: Path) -> bool:
        try:
            recorded: list[str] = json.loads((folder / RECORD).read_text())
        except (OSError, ValueError):
            return False
        return (
            any(Path(name).name == f"{self.package.replace('-', '_')}-{self.version}.dist-info" for name in recorded)
            and _python(folder).is_file()  # a link to the Python that made it, which may be gone
            and all((folder / name / "RECORD").is_file() for name in recorded)
        )

    def runs_on(self) -> str:
        if importlib.util.find_spec("ensurepip") is None:
            raise NotReadyError(
                f"this harness needs a virtual environment, and the Python at {sys.executable} lacks ensurepip; "
                "install your system's package with it (Debian: apt-get install python3-venv)"
            )
        return f"Python {platform.python_version()} at {sys.executable}"

    def registry_url(self) -> str:
        url = os.environ.get(self.registry_variable, INDEX)
        return "the package index that is configured" if "@" in url else url

    def listed_versions(self, limit_s: float) -> list[str]:
        options = (WHEELS, "--pre", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--retries=0")
        command = (sys.executable, "-m", "pip", "index", "versions", self.package, *options)
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotReadyError(f"pip can't list the versions of {self.package}: {error}") from error
        found = _VERSIONS.search(ended.stdout)
        if found is None:
            raise NotReadyError(f"pip can't list the versions of {self.package}: {ended.stderr.strip()[:OUTPUT_LIMIT]}")
        return found[1].split(", ")

    def is_among(self, versions: list[str]) -> bool:
        # 1.0 and 1.0.0 are one version.
        return Version(self.version) in map(Version, versions)

    def _steps(self, folder: Path, downloads: Path) -> Iterable[tuple[str, ...]]:
        yield (sys.executable, "-m", "venv", str(folder))
        pip = (str(_python(folder)), "-m", "pip", "install", *OPTIONS, WHEELS, "--cache-dir", str(downloads))
        if self.is_locked:
            yield (*pip, "--require-hashes", "--no-deps", "--requirement", str(self.lock))
        else:
            yield (*pip, f"{self.package}=={self.version}", *self.beside)

    def _seal(self, folder: Path) -> None:
        packages = [str(found.relative_to(folder)) for found in sorted(folder.glob("lib/*/site-packages/*.dist-info"))]
        (folder / RECORD).write_text(json.dumps(packages))

    def _failure(self, output: str) -> Failure:
        if found := _UNREACHABLE.search(output):
            return Failure(found[0], is_unreachable=True)
        return Failure(
            lines_after("ERROR: ", output),
            is_disk_full="No space left on device" in output,
            lacks_version=f"No matching distribution found for {self.package}=={self.version}" in output,
        )


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"
