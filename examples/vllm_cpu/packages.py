"""Packages beside vLLM's environment, which has the torch and transformers that they import: a folder in the user's cache.

    python -m examples.vllm_cpu.packages REQUIREMENTS

prints the folder, for PYTHONPATH. It is named for the hash of the pins and for the Python under it, and built by one process at a time
(`topics.environment.cache`). The requirements pin every package and pip resolves nothing.
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


def packages(pins: Path, *flags: str, name: str | None = None) -> Path:
    """The folder, made now if it isn't there or isn't whole; `flags` are pip's.

    `name` begins its name; None: that of the folder of the pins, with a word for dill, which datasets uses: without that word in its path
    it pickles a module by value, and fails. Raises CacheError, and CalledProcessError where pip fails.
    """

    def build(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
        subprocess.run([*pip, "--no-deps", *flags, "--target", folder, "-r", pins], check=True)

    def is_whole(folder: Path) -> bool:
        return install.pins(pins).items() <= install.installed(folder).items()

    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:12]
    entry = f"{name or f'{pins.absolute().parent.name}-site-packages'}-{digest}-py{sys.version_info.major}.{sys.version_info.minor}"
    return cache.installed(entry, build, whole=is_whole, announce=lambda line: print(line, file=sys.stderr))


def variables(folder: Path) -> dict[str, str]:
    """For programs in vLLM's environment: its variables, with these packages on the path."""
    base = environment()
    return {**base, "PYTHONPATH": os.pathsep.join([base["PYTHONPATH"], str(folder)])}


def main() -> None:
    try:
        print(packages(Path(sys.argv[1])))
    except cache.CacheError as error:
        sys.exit(f"packages: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"packages: pip ended with {error.returncode}; nothing was kept, ask again")


if __name__ == "__main__":
    main()
