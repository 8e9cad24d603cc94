"""Images of a registry: pulled, refused, tried again, and broken."""

from __future__ import annotations

import asyncio
import gzip
import os
import time
from collections.abc import Iterator

import docker
import pytest
from docker.errors import NotFound

from consumers.runtimes.base import Labels, SandboxError
from consumers.runtimes.container import engine as engines
from consumers.runtimes.container.engine import Engine
from consumers.runtimes.container.runtime import ContainerBackend
from tests.consumers.runtimes.images import making
from tests.consumers.runtimes.images.registry import Registry, serving
from tests.waiting import eventually
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec
from topics.waiting.backoff import Backoff

pytestmark = pytest.mark.docker

NAME = "polar/agent"


@pytest.fixture
def registry(engine: docker.DockerClient) -> Iterator[Registry]:
    with serving() as made:
        yield made
        try:
            engine.images.remove(f"127.0.0.1:{made.port}/{NAME}:latest", force=True)
        except NotFound:
            pass


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PAUSES", Backoff(first_s=0.01, longest_s=0.01))


def fresh() -> dict[str, bytes]:
    """A layer that the engine hasn't seen in another image, so it asks for it."""
    return {"file": os.urandom(1000)}


def named(registry: Registry) -> str:
    return f"127.0.0.1:{registry.port}/{NAME}"


async def test_an_image_is_pulled_once_however_many_ask_and_is_here_from_then_on(registry: Registry) -> None:
    made = making.image([fresh(), fresh()], {"WorkingDir": "/work", "Env": ["A=b"]})
    registry.add(NAME, made)
    asking = Engine()
    images = await asyncio.gather(*(asking.image(named(registry)) for _ in range(3)))
    assert [(each.id, each.workspace, each.env["A"]) for each in images] == [(made.config_digest, "/work", "b")] * 3
    assert {registry.asked_for(name) for name in made.blobs} == {1}
    before = len(registry.requests)
    await Engine().image(named(registry))
    assert len(registry.requests) == before


async def test_a_registry_that_says_too_many_requests_is_asked_again_after_a_pause(registry: Registry) -> None:
    made = making.image([fresh()])
    registry.add(NAME, made)
    registry.status["/manifests/"] = 429
    pulling = asyncio.create_task(Engine().image(named(registry)))
    # The engine begins each pull with this request.
    await eventually(lambda: "GET /v2/" in registry.requests, 30)
    began = time.monotonic()
    await eventually(lambda: registry.requests.count("GET /v2/") > 1, 30)
    assert time.monotonic() - began > engines.PAUSES.first_s * (1 - engines.PAUSES.jitter) / 2
    registry.status.clear()
    assert (await pulling).id == made.config_digest


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(("status", "tries"), [(404, 1), (403, 1), (429, engines.PULLS), (503, engines.PULLS)])
async def test_an_image_that_is_not_there_is_the_tasks_fault_and_one_that_cannot_be_fetched_is_not(
    engine: docker.DockerClient, backend: ContainerBackend, registry: Registry, claim: str, status: int, tries: int
) -> None:
    registry.status["/manifests/"] = status
    with pytest.raises(InputError if tries == 1 else SandboxError, match="can't be pulled") as raised:
        await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec(backend="docker", image=named(registry)))
    if isinstance(raised.value, InputError):
        assert raised.value.field == "runtime.image"
    elif isinstance(raised.value, SandboxError):
        assert raised.value.code == "image_unavailable"
    # Podman itself begins a pull four times that is answered so.
    each = 4 if status == 429 and engine.info().get("Rootless") else 1
    assert registry.requests.count("GET /v2/") == tries * each
    assert await backend.labelled() == []


@pytest.mark.usefixtures("_impatient")
async def test_a_layer_with_another_digest_is_named_and_fetched_again(registry: Registry) -> None:
    made = making.image([fresh()])
    registry.add(NAME, made)
    layer = next(name for name in made.blobs if name != made.config_digest)
    registry.blobs[layer] = made.blobs[layer][:-1] + b"?"
    with pytest.raises(SandboxError, match=rf"{NAME} can't be pulled now: .*{layer}") as raised:
        await Engine().image(named(registry))
    assert raised.value.code == "image_unavailable"
    assert registry.asked_for(layer) >= engines.PULLS
    registry.add(NAME, made)
    assert (await Engine().image(named(registry))).id == made.config_digest


@pytest.mark.parametrize("data", [b"no archive" * 99, gzip.compress(b"no archive" * 99)], ids=["plain", "gzip"])
async def test_a_layer_that_is_no_archive_is_the_tasks_fault(registry: Registry, data: bytes) -> None:
    registry.add(NAME, making.image([data], compress=making.plain))
    with pytest.raises(InputError, match=r"runtime\.image: can't be pulled: .*invalid tar header"):
        await Engine().image(named(registry))
