"""Where sessions of the tasks in examples/swe run."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from consumers.runtimes.base import RuntimeBackend
from consumers.runtimes.cell.backend import CellBackend
from consumers.runtimes.images.store import ImageStore
from tests.consumers.runtimes.images import making
from topics.environment import registry

PROGRAMS = (
    *making.PROGRAMS,
    *("comm", "cut", "find", "git", "grep", "mktemp", "nohup", "sed", "setsid", "sort", "tar", "xargs"),
)
LEFT_OUT = {"__pycache__", "idlelib", "lib2to3", "site-packages", "dist-packages", "test", "tests", "tkinter"}
"""Parts of Python's library that the tasks don't need."""


@pytest.fixture
def backend(tmp_path: Path) -> RuntimeBackend:
    """Cells, the default of tasks."""
    made: RuntimeBackend = registry.load(registry.Kind.RUNTIME, "cell")(tmp_path / "runtimes")
    return made


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    """An image for the Python tasks, with Python and git of this machine under the name in their Dockerfiles."""
    folder = tmp_path_factory.mktemp("images")
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    making.oci_layout(folder / "python", [making.host_layer((*PROGRAMS, str(python))), _python(python)])
    return ImageStore(folder / "store", {"python:3.12": f"oci:{folder}/python:latest"}, trusts_tasks=False)


@pytest.fixture
def image_backend(tmp_path: Path, images: ImageStore) -> RuntimeBackend:
    """Cells with that image."""
    return CellBackend(tmp_path / "runtimes", images)


def _python(program: Path) -> dict[str, making.Entry]:
    """A layer with this Python at its own path, and `python3` in /usr/bin. Its shared libraries are in the layer below."""
    entries: dict[str, making.Entry] = {str(program).lstrip("/"): making.File(program.read_bytes(), 0o755)}
    entries["usr/bin/python3"] = making.Link(str(program))
    for parent, folders, files in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        entries |= {f"{parent}/{name}".lstrip("/"): Path(parent, name).read_bytes() for name in files}
    return entries
