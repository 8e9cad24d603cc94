"""Agent CLIs of the Python Package Index, each in a virtual environment of its own, of the Python that runs Polar.

Owns what makes such an installation whole. A CLI is started as a module by its environment's python: the scripts beside that name the
folder in which they were made, and an installation is moved when it is done.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from consumers.harnesses.cli import Cli, Failure, lines_after
from topics.types.errors import NotReady

RECORD = Path("installed.json")
"""The `dist-info` folders of all packages, in the environment's folder."""
INDEX = "https://pypi.org/simple"
OPTIONS = ("--quiet", "--no-input", "--disable-pip-version-check", "--timeout=15", "--retries=2")

_UNREACHABLE = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ConnectionReset|RemoteDisconnected|ProxyError|SSLError"
)


@dataclass(frozen=True)
class PypiCli(Cli):
    """A CLI of the Python Package Index."""

    installer = "pip"
    registry_variable = "PIP_INDEX_URL"

    beside: tuple[str, ...]
    """Other packages at their versions: what it needs and doesn't ask for, and what shapes its requests."""
    module: str
    """What `python -m` starts."""

    def command(self) -> tuple[str, ...]:
        return (str(_python(self.folder)), "-m", self.module)

    def is_whole(self, folder: Path) -> bool:
        try:
            recorded: list[str] = json.loads((folder / RECORD).read_text())
        except (OSError, ValueError):
            return False
        return (
            any(Path(name).name == f"{self.package.replace('-', '_')}-{self.version}.dist-info" for name in recorded)
            and _python(folder).is_file()  # it leads to the Python that made it, which may be gone
            and all((folder / name / "RECORD").is_file() for name in recorded)
        )

    def runs_on(self) -> str:
        if importlib.util.find_spec("ensurepip") is None:
            raise NotReady(
                f"this harness needs a virtual environment, and the Python at {sys.executable} lacks ensurepip; "
                "install what your system parts from it (Debian: apt-get install python3-venv)"
            )
        return f"Python {platform.python_version()} at {sys.executable}"

    def registry_url(self) -> str:
        url = os.environ.get(self.registry_variable, INDEX)
        return "the package index that is configured" if "@" in url else url

    def _steps(self, folder: Path, downloads: Path) -> Iterable[tuple[str, ...]]:
        yield (sys.executable, "-m", "venv", str(folder))
        pip = (str(_python(folder)), "-m", "pip", "install", *OPTIONS, "--cache-dir", str(downloads))
        yield (*pip, f"{self.package}=={self.version}", *self.beside)

    def _seal(self, folder: Path) -> None:
        packages = [str(found.relative_to(folder)) for found in sorted(folder.glob("lib/*/site-packages/*.dist-info"))]
        (folder / RECORD).write_text(json.dumps(packages))

    def _failure(self, said: str) -> Failure:
        if found := _UNREACHABLE.search(said):
            return Failure(found[0], is_unreachable=True)
        return Failure(lines_after("ERROR: ", said), is_disk_full="No space left on device" in said)


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"
