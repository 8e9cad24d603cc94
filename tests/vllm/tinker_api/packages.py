"""SkyRL's server of Tinker's API and Tinker's client in an environment of Python 3.12: 1.0 GB in the user's cache, a minute to install.

The folder is named for the hash of `requirements.txt` and built by one process at a time (`topics.environment.cache`). SkyRL needs Python
3.12, so the client's program runs there, too, with this checkout on its path.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from examples.vllm_cpu import install
from examples.vllm_cpu.serve import ROOT
from tests.installed import digest, python312
from topics.environment import cache

HERE = Path(__file__).parent
PINS = HERE / "requirements.txt"
NAME = f"tinker-{digest(PINS)}-py3.12"


def environment() -> Path:
    """The environment's folder, made now if it isn't there or isn't whole. Skips the test where there is no Python 3.12."""
    python = python312("SkyRL")
    return cache.installed(NAME, lambda folder: _build(python, folder), whole=_is_whole, announce=print)


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
