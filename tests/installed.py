"""Other people's programs for tests: the Python that they need, and their packages in folders of the user's cache.

A folder is named for the hash of its pins and for the Python under it, and built by one process at a time (`topics.environment.cache`). The
pins name every package and pip resolves nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.vllm_cpu import install
from topics.environment import cache

PYTHON = "python3.12"


def python312(user: str) -> str:
    """A Python 3.12 of this machine. Without one the test skips and names the `user`, who needs it."""
    found = next((path for path in _candidates() if _starts(path)), None)
    if found is None:
        pytest.skip(f"{user} needs Python 3.12: there is no {PYTHON} on PATH or among pyenv's versions")
    return found


def packages(name: str, pins: Path, python: str, *flags: str) -> Path:
    """The folder of these packages for `python`, made now if it isn't there or isn't whole; `flags` are pip's.

    Raises CacheError, and CalledProcessError where pip fails.
    """

    def build(folder: Path) -> None:
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile", "--no-deps"]
        subprocess.run([*pip, *flags, "--target", folder, "-r", pins], check=True)

    def is_whole(folder: Path) -> bool:
        return install.pins(pins).items() <= install.installed(folder).items()

    asked = [python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    return cache.installed(f"{name}-{digest(pins)}-py{version}", build, whole=is_whole, announce=print)


def digest(pins: Path) -> str:
    return hashlib.sha256(pins.read_bytes()).hexdigest()[:12]


def _candidates() -> Iterator[str]:
    if sys.version_info[:2] == (3, 12):
        yield sys.executable
    if (on_path := shutil.which(PYTHON)) is not None:
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/3.12.*/bin/{PYTHON}")))


def _starts(python: str) -> bool:
    """pyenv's shim is on PATH, and fails, where the version isn't chosen."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
