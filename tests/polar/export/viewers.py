"""Programs that show our exports, each with its packages in a folder of the user's cache: Harbor 300 MB, Inspect 240 MB.

A folder is named for the hash of its pins and for the Python under it. pip resolves nothing: the pins name every package.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.vllm_cpu import install
from topics.environment import cache


@dataclass(frozen=True)
class Viewer:
    """A program in its packages."""

    name: str
    code: str
    """Python that runs its command line."""

    @property
    def pins(self) -> Path:
        return Path(__file__).with_name(f"{self.name}.txt")

    def command(self, python: str, *arguments: str | Path) -> list[str | Path]:
        return [python, "-c", self.code, *arguments]

    def variables(self, python: str, home: Path) -> dict[str, str]:
        """For the program; its packages are installed now if they aren't there. Raises CacheError, CalledProcessError."""
        version = _run([python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]).strip()
        pins = hashlib.sha256(self.pins.read_bytes()).hexdigest()[:12]

        def build(folder: Path) -> None:
            pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
            subprocess.run([*pip, "--no-deps", "--target", folder, "-r", self.pins], check=True)

        folder = cache.installed(f"{self.name}-{pins}-py{version}", build, whole=self._is_whole, announce=print)
        return {**os.environ, "PYTHONPATH": str(folder), "HOME": str(home)}

    def _is_whole(self, folder: Path) -> bool:
        return install.pins(self.pins).items() <= install.installed(folder).items()


HARBOR = Viewer("harbor", "from harbor.cli.main import app; app()")
INSPECT = Viewer("inspect", "from inspect_ai._cli.main import main; main()")


def python312() -> str:
    """A Python 3.12 on PATH or among pyenv's versions; the test skips without one."""
    if sys.version_info[:2] == (3, 12):
        return sys.executable
    root = os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv"
    found = [str(python) for python in sorted(Path(root).glob("versions/3.12.*/bin/python"))]
    # A shim of pyenv may stand on PATH for a version that isn't chosen, and then doesn't run.
    for python in (*found, shutil.which("python3.12")):
        if python and subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip("Harbor needs Python 3.12, and none is on PATH or among pyenv's versions")


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
