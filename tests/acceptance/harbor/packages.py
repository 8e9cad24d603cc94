"""Harbor's packages for Python 3.12, which Harbor needs: a folder in the user's cache, as tests/vllm/exporters/packages.py makes one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from examples.vllm_cpu import install
from topics.environment import cache

PINS = Path(__file__).with_name("requirements.txt")
FOLDER = f"harbor-{hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]}-py3.12"
PYTHON = "python3.12"


def python() -> str | None:
    """A Python 3.12 that starts: on PATH, or one of pyenv's. None where there is none."""
    return next(
        (
            path
            for path in _candidates()
            if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
        ),
        None,
    )


def packages(python: str) -> Path:
    """The folder, made now if it isn't there or isn't whole. Raises CacheError, and CalledProcessError where pip fails."""

    def build(folder: Path) -> None:
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile", "--no-deps"]
        subprocess.run([*pip, "--target", folder, "-r", PINS], check=True)

    return cache.installed(FOLDER, build, whole=_is_whole, announce=print)


def _candidates() -> Iterator[str]:
    found = shutil.which(PYTHON)
    if found is not None:
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/3.12*/bin/{PYTHON}")))


def _is_whole(folder: Path) -> bool:
    return install.pins(PINS).items() <= install.installed(folder).items()
