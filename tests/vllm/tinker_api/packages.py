"""SkyRL's server of Tinker's API and Tinker's client in an environment of Python 3.12: 1.0 GB in the user's cache, a minute to install.

The folder is named for the hash of `requirements.txt` and built by one process at a time (`topics.environment.cache`). SkyRL needs Python
3.12, so the client's program runs there, too, with this checkout on its path.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.vllm_cpu import install
from examples.vllm_cpu.serve import ROOT
from topics.environment import cache

HERE = Path(__file__).parent
PINS = HERE / "requirements.txt"
NAME = f"tinker-{hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]}-py3.12"
COMMAND = "python3.12"


def environment() -> Path:
    """The environment's folder, made now if it isn't there or isn't whole. Skips the test where there is no Python 3.12."""
    found = next(_pythons(), None)
    if found is None:
        pytest.skip(f"SkyRL needs Python 3.12: there is no {COMMAND} on PATH or among pyenv's versions")
    return cache.installed(NAME, lambda folder: _build(found, folder), whole=_is_whole, announce=print)


def client_variables() -> dict[str, str]:
    """For a program of ours in that environment."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}


def server_variables(environment: Path) -> dict[str, str]:
    """For SkyRL's server, which insists on `uv run` as its parent, and starts its engine by `uv run`, too."""
    return {
        **os.environ,
        "VIRTUAL_ENV": str(environment),
        "PATH": os.pathsep.join([str(environment / "bin"), os.environ["PATH"]]),
        "PYTHONPATH": str(HERE / "standins"),
        "UV_OFFLINE": "1",
        "UV_NO_CACHE": "1",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
    }


def _pythons() -> Iterator[str]:
    if (on_path := shutil.which(COMMAND)) is not None and _runs(on_path):
        yield on_path
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(root.glob(f"versions/3.12.*/bin/{COMMAND}")))


def _runs(command: str) -> bool:
    """A shim of pyenv's is on PATH, and fails, where the version isn't chosen."""
    return subprocess.run([command, "-c", ""], capture_output=True, check=False).returncode == 0


def _is_whole(folder: Path) -> bool:
    packages = folder / "lib" / "python3.12" / "site-packages"
    return (folder / "bin" / "python").exists() and install.pins(PINS).items() <= install.installed(packages).items()


def _build(python: str, folder: Path) -> None:
    subprocess.run([python, "-m", "venv", folder], check=True)
    pip: list[str | Path] = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    subprocess.run([*pip, "--no-deps", "--no-compile", "-r", PINS], check=True)
