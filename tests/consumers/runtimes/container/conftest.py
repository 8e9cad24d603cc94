"""Sessions in containers of one real engine; see `tests/compose/daemon.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

import docker
import pytest

from consumers.runtimes.base import Handle, Labels, Step
from consumers.runtimes.container.runtime import ContainerBackend
from consumers.runtimes.container.sandbox import ContainerRuntime
from tests.compose import base, daemon
from topics.types.runtime import RuntimeSpec


class ImageBackend(ContainerBackend):
    """Gives a task without an image the tests' own."""

    async def create(self, labels: Labels, spec: RuntimeSpec, steps: Sequence[Step] = ()) -> ContainerRuntime:
        return await super().create(labels, in_image(spec), steps)

    async def attach(
        self, handle: Handle, claim_id: str, spec: RuntimeSpec, *, fresh: bool = False
    ) -> ContainerRuntime:
        return await super().attach(handle, claim_id, in_image(spec), fresh=fresh)


def in_image(spec: RuntimeSpec) -> RuntimeSpec:
    return spec if spec.image else spec.model_copy(update={"image": base.IMAGE})


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """A client of an engine that has the base image."""
    with daemon.running() as client, pytest.MonkeyPatch.context() as patched:
        base.ensure_image(client)
        # Each backend asks both, and Podman takes half a second for an answer: it looks its programs up in the system's list of packages.
        info, version = client.info(), client.api.api_version
        patched.setattr(docker.DockerClient, "info", lambda _: info)
        patched.setattr(docker, "from_env", partial(docker.from_env, version=version))
        yield client


@pytest.fixture
async def backend(engine: docker.DockerClient, tmp_path: Path) -> AsyncIterator[ContainerBackend]:
    made = ImageBackend(tmp_path / "runtimes")
    yield made
    for left in await made.labelled():
        await made.remove(left.handle)
    assert things_of(engine, made) == []


def things_of(engine: docker.DockerClient, backend: ContainerBackend) -> list[str]:
    """The containers and images that a backend has made and not removed."""
    filters = {"label": f"polar.root={backend.folders.root}"}
    found = [*engine.containers.list(all=True, filters=filters), *engine.images.list(filters=filters)]
    return [str(one.id) for one in found]
