"""How long a session's INIT takes in an image, in a cell and in a container, by turns.

    python -m benchmarks.images [--format table|json]

The image is a Debian that debootstrap makes; Docker's daemon is this benchmark's own unless one answers. `runtime.prepare` has one action,
which is carried out once: each session that counts begins with what it left. INIT is all that a worker's stage init does with a runtime:
its creation and preparation, without the start of a program. By turns with them, Docker makes and starts a container of the image without
anything of ours: the part of INIT that only fewer or earlier containers could save. Needs root, debootstrap, skopeo and docker.io,
so `python -m benchmarks` leaves it out.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import docker

from benchmarks import report
from benchmarks.report import Figure, say
from consumers.runtimes.base import Labels, RuntimeBackend
from consumers.runtimes.cell.backend import CellBackend
from consumers.runtimes.container.engine import gone_is_fine
from consumers.runtimes.container.preparations import REPOSITORY
from consumers.runtimes.container.runtime import ContainerBackend
from consumers.runtimes.images.store import ImageStore
from consumers.runtimes.preparation_names import names_of
from consumers.runtimes.prepare import steps
from tests.compose import base, daemon
from topics.environment.blobs import FolderBlobs
from topics.types.runtime import RuntimeSpec

SESSIONS = 40
"""Sessions that count, of each backend by turns."""
AT_ONCE = 32
SPEC = RuntimeSpec.model_validate(
    {"image": base.IMAGE, "prepare": [{"type": "exec", "command": "echo prepared > /srv/prepared"}]}
)


class Sessions:
    """Makes prepared sessions in one backend, and removes them."""

    def __init__(self, name: str, backend: RuntimeBackend, blobs: FolderBlobs) -> None:
        self.name = name
        self.took_ms: list[float] = []
        self._backend = backend
        self._blobs = blobs
        self._made = 0

    async def one(self) -> float:
        """Milliseconds of one session's INIT."""
        self._made += 1
        labels = Labels("bench", f"task.{self._made}", 1, f"{self.name}-{self._made}")
        began = time.perf_counter()
        runtime = await self._backend.create(labels, SPEC, steps(SPEC.prepare, self._blobs))
        took = (time.perf_counter() - began) * 1e3
        await runtime.remove()
        return took

    async def all_at_once(self) -> float:
        """Seconds from the first one's beginning to the last one's removal."""
        began = time.perf_counter()
        await asyncio.gather(*(self.one() for _ in range(AT_ONCE)))
        return time.perf_counter() - began


class Bare:
    """Makes containers without anything of Polar's, and removes them."""

    def __init__(self, client: docker.DockerClient) -> None:
        self.took_ms: list[float] = []
        self._client = client

    async def one(self) -> float:
        """Milliseconds until a container has started."""
        return await asyncio.to_thread(self._one)

    def _one(self) -> float:
        began = time.perf_counter()
        container = self._client.containers.create(base.IMAGE, ["sleep", "infinity"], network_mode="none")
        container.start()
        took = (time.perf_counter() - began) * 1e3
        container.remove(force=True)
        return took


def run() -> list[Figure]:
    """Measure both backends, and Docker alone."""
    with daemon.running() as client, tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        base.ensure_image(client)
        archive = Path(folder, "image.tar")
        with archive.open("wb") as file:
            for chunk in client.images.get(base.IMAGE).save(named=True):
                file.write(chunk)
        try:
            return asyncio.run(_measured(Path(folder), archive, client))
        finally:
            name = names_of(str(client.images.get(base.IMAGE).id), SPEC)[-1]
            gone_is_fine(lambda: client.images.remove(f"{REPOSITORY}:{name}"))


async def _measured(folder: Path, archive: Path, client: docker.DockerClient) -> list[Figure]:
    blobs = FolderBlobs(folder / "blobs")
    images = ImageStore(folder / "images", {base.IMAGE: f"docker-archive:{archive}"}, trusts_tasks=False)
    both = [
        Sessions("cell", CellBackend(folder / "cells", images), blobs),
        Sessions("docker", ContainerBackend(folder / "containers"), blobs),
    ]
    for sessions in both:
        say(f"{sessions.name}: the first prepares ({await sessions.one():.0f} ms)")
    timed: list[Sessions | Bare] = [*both, Bare(client)]
    for _ in range(SESSIONS):
        for each in timed:
            each.took_ms.append(await each.one())
    cell, container, bare = (statistics.median(each.took_ms) for each in timed)
    return [
        Figure("INIT in a cell, p50", cell, "ms", "≤ 60"),
        Figure("INIT in a container, p50", container, "ms", "≤ 1500"),
        Figure("Docker alone, p50", bare, "ms"),
        Figure("INIT: container / cell", container / cell, ""),
        Figure("INIT in a container / Docker alone", container / bare, ""),
        *[Figure(f"{AT_ONCE} at once, {sessions.name}", await sessions.all_at_once(), "s") for sessions in both],
    ]


if __name__ == "__main__":
    report.main(__doc__, run)
