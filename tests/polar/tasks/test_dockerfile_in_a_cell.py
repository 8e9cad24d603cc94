"""A Harbor task with a Dockerfile runs in a cell: what the Dockerfile made is there, and its tests give the reward."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumers.evaluators.base import Case
from consumers.evaluators.harbor import Harbor
from consumers.runtimes.base import Exec, Labels, Runtime
from consumers.runtimes.cell.backend import CellBackend
from consumers.runtimes.images.store import ImageStore
from consumers.runtimes.prepare import prepare, steps
from polar.tasks.harbor_mapping import mapped
from polar.tasks.task_sets import Member
from tests.consumers.runtimes.images import making
from tests.consumers.runtimes.images.making import Folder
from tests.polar.tasks.writing import AGENT, read
from tests.uploading import submitted
from topics.environment.blobs import BlobStore, FolderBlobs
from topics.types.session import Status
from topics.types.task import TaskRequest

pytestmark = pytest.mark.contract

DOCKERFILE = """
ARG TAG=1
FROM river:${TAG}
RUN echo "$PWD $HOME ${RIVER-none} $PATH" > /before
ENV RIVER="the Rhine" PATH=/opt/tools:$PATH
RUN mkdir /root/mine && cp /before ~/mine/ && \\
    false | true
WORKDIR /app/repo
COPY --chmod=0700 tools/ask /opt/tools/
COPY . .
COPY data/*.txt /data/
RUN ["tee", "made", "$RIVER"]
RUN ask > said
CMD ["never"]
"""
FILES = {"tools/ask": "#!/bin/sh\necho asked $RIVER\n", "data/a.txt": "a\n", "data/b.txt": "b\n"}
TEST = """
[ "$PWD" = /app/repo ] && [ "$(cat answer.txt)" = "asked the Rhine" ] && [ -f /tests/expected ] && echo 1 > /logs/verifier/reward.txt
[ -f answer.txt ] || echo 0 > /logs/verifier/reward.txt
"""


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[CellBackend]:
    layout = tmp_path / "layout"
    making.oci_layout(
        layout, [making.host_layer(), {"app": Folder()}], {"WorkingDir": "/app", "Env": ["PATH=/usr/bin:/bin"]}
    )
    images = ImageStore(tmp_path / "images", {"river:1": f"oci:{layout}:latest"}, trusts_tasks=False)
    made = CellBackend(tmp_path / "runtimes", images)
    yield made
    for left in await made.labelled():
        await made.remove(left.handle)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return FolderBlobs(tmp_path / "blobs")


@pytest.fixture
def task(tmp_path: Path, blobs: BlobStore) -> TaskRequest:
    """As `polar tasks import` and `polar submit` make it."""
    folder = tmp_path / "river"
    for name, text in FILES.items():
        path = folder / "environment" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = read(folder, {}, environment__Dockerfile=DOCKERFILE, tests__test_sh=TEST, tests__expected="")
    request = mapped(Member("river", folder), found, AGENT).request()
    assert isinstance(request, TaskRequest), request
    return submitted(request, blobs)


async def initialised(backend: CellBackend, task: TaskRequest, blobs: BlobStore) -> Runtime:
    labels = Labels("polar", "river.0", 1, claim())
    return await backend.create(labels, task.runtime, steps(task.runtime.prepare, blobs))


def claim() -> str:
    return f"claim-{uuid.uuid4().hex}"


async def output(runtime: Runtime, command: str) -> str:
    ended = await runtime.exec(Exec(command, timeout_s=30))
    assert ended.exit_code == 0, ended.tail
    return ended.tail


async def test_what_the_dockerfile_made_is_there(backend: CellBackend, blobs: BlobStore, task: TaskRequest) -> None:
    made = await initialised(backend, task, blobs)
    run = await backend.attach(made.handle, claim(), task.runtime)
    assert await output(run, "pwd; echo $RIVER $PATH; cat /root/mine/before") == (
        "/app/repo\nthe Rhine /opt/tools:/usr/bin:/bin\n/ /root none /usr/bin:/bin\n"
    )
    assert await output(run, "ls; cat said; ls /data; stat -c %a /opt/tools/ask data/a.txt; ask") == (
        "$RIVER\nDockerfile\ndata\nmade\nsaid\ntools\nasked the Rhine\na.txt\nb.txt\n700\n644\nasked the Rhine\n"
    )


@pytest.mark.parametrize(("agent", "reward"), [("ask > answer.txt", 1.0), ("true", 0.0)])
async def test_its_tests_give_the_reward(
    backend: CellBackend, blobs: BlobStore, task: TaskRequest, agent: str, reward: float
) -> None:
    made = await initialised(backend, task, blobs)
    await output(await backend.attach(made.handle, claim(), task.runtime), agent)
    fresh = await backend.attach(made.handle, claim(), task.runtime, fresh=True)
    await prepare(fresh, task.runtime.eval_prepare or (), blobs, field="runtime.eval_prepare")
    assert task.evaluator.strategy == "harbor"
    verdict = await Harbor(task.evaluator.config).evaluate(Case(fresh, "river.0", Status.COMPLETED, 0, None, {}))
    assert verdict.reward == reward
