"""The trainers' packages beside vLLM's environment, which has the torch and transformers that they import: 600 MB in the user's cache.

The folder is named for the hash of `requirements.txt` and for the Python under it, as vLLM's environment is, and built by one process at a
time (`topics.environment.cache`). `requirements.txt` pins every package and pip resolves nothing: the trainers name versions of torch, Ray
or Python for their training, which isn't run here.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from examples.vllm_cpu import install
from examples.vllm_cpu.serve import environment
from topics.environment import cache

PINS = Path(__file__).with_name("requirements.txt")
FOLDER = (
    f"trainers-{hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]}-py{sys.version_info.major}.{sys.version_info.minor}"
)


def packages() -> Path:
    """The folder of the packages, made now if it isn't there or isn't whole. Raises CacheError, and CalledProcessError where pip fails."""
    return cache.installed(FOLDER, _build, whole=_is_whole, announce=print)


def variables(packages: Path) -> dict[str, str]:
    """For programs in vLLM's environment: its variables, with these packages on the path."""
    base = environment()
    return {**base, "PYTHONPATH": os.pathsep.join([base["PYTHONPATH"], str(packages)])}


def _is_whole(folder: Path) -> bool:
    return install.pins(PINS).items() <= install.installed(folder).items()


def _build(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    # NeMo-Gym asks for a newer Python than its types need.
    subprocess.run([*pip, "--no-deps", "--ignore-requires-python", "--target", folder, "-r", PINS], check=True)
