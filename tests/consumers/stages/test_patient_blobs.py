"""Stages wait for a blob store that doesn't answer, and no longer than they should."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath

import pytest
from structlog.testing import capture_logs

from consumers.harnesses.base import Launch
from consumers.runtimes.base import Labels, ModelAccess, Runtime
from consumers.stages import patient_blobs
from consumers.stages.artifacts import stored
from consumers.stages.claim_runner import Claim, outcome
from consumers.stages.patient_blobs import fetch, patiently
from consumers.stages.run import Run
from consumers.stages.worker_context import WorkerContext
from tests.consumers.stages.coordinating import settings_for
from tests.s3_server import BUCKET, KEY_ID, SECRET, s3_server
from tests.serving import free_port
from tests.waiting import eventually
from topics.control import Grant
from topics.environment import s3
from topics.environment.blob_cache import CachedBlobs
from topics.environment.blobs import BlobRef, BlobStore, BlobStoreError, FolderBlobs, Readable
from topics.environment.s3 import S3Address
from topics.environment.s3_blobs import S3Blobs
from topics.events import RunFinished
from topics.stages import Ticket
from topics.types.agent import AgentSpec
from topics.types.errors import Kind, NotReadyError
from topics.types.runtime import RuntimeSpec
from topics.types.session import Stage
from topics.types.uploads import Content, PrepareAction

BLOB = BlobRef(f"blob:sha256/{'0' * 64}", 1)


class Hung(BlobStore):
    """A store that answers nothing before `gate` opens, and then fails."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    @property
    def place(self) -> str:
        return "s3://hung"

    def fetch(self, ref: str) -> None:
        assert self.gate.wait(60.0)
        raise BlobStoreError("no answer (POLAR_BLOBS)")

    def refresh(self, ref: str) -> bool:
        self.fetch(ref)
        return False

    def write(self, blob: BlobRef, chunks: Iterable[bytes]) -> None:
        self.fetch(blob.ref)

    def source(self, ref: str) -> AbstractContextManager[Readable]:
        self.fetch(ref)
        raise FileNotFoundError


@pytest.fixture
def hung() -> Iterator[Hung]:
    store = Hung()
    yield store
    store.gate.set()


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> S3Blobs:
    """A store at an address where nobody listens."""
    monkeypatch.setattr(s3, "RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return S3Blobs(S3Address("nowhere", ""))


def upload(ref: BlobRef) -> PrepareAction:
    content = Content(ref=ref.ref, size=ref.size)
    return PrepareAction(type="upload_file", source="file", target="file", content=content)


async def test_an_outage_that_does_not_end_is_raised_in_time(nobody: S3Blobs) -> None:
    with pytest.raises(BlobStoreError, match="POLAR_BLOBS"):
        await patiently(lambda: nobody.get(BLOB.ref), 0.1)


async def test_an_upload_that_does_not_come_is_named_with_the_setting(nobody: S3Blobs, tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=rf"^{BLOB.ref} can't be brought to this worker: .*POLAR_BLOBS"):
        await fetch(CachedBlobs(nobody, tmp_path), [upload(BLOB)], 0.1)


async def test_a_missing_upload_is_left_to_the_action_that_names_it(tmp_path: Path) -> None:
    await fetch(CachedBlobs(FolderBlobs(tmp_path / "far"), tmp_path / "near"), [upload(BLOB)], 30.0)


async def test_sessions_that_need_no_blob_go_on_while_the_store_hangs(hung: Hung) -> None:
    waiting = [asyncio.create_task(fetch(hung, [upload(BLOB)], 60.0)) for _ in range(2 * patient_blobs.THREADS)]
    await asyncio.sleep(0)  # each has asked for a thread
    async with asyncio.timeout(20):
        assert await asyncio.to_thread(lambda: "done") == "done"
    for each in waiting:
        each.cancel()
    hung.gate.set()
    await asyncio.wait(waiting)


async def test_skills_that_do_not_come_are_no_time_out_of_the_agent(
    hung: Hung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.stages.run.WAIT_S", 0.1, raising=False)
    context = WorkerContext(settings_for("", "any", tmp_path, "http://127.0.0.1:9"), lambda: True, lambda: None)
    context.blobs = hung
    runtime = await context.backend("process").create(Labels("any", "t.0", 1, "i-1"), RuntimeSpec())
    skill = {"source": "weighing", "content": {"ref": BLOB.ref, "size": 1}}
    body = {"task_id": "t", "instruction": "x", "agent": {"import_path": f"{__name__}:Agent", "skills": [skill]}}
    body["runtime"] = {"backend": "process"}
    claim = Claim(
        Ticket("t.0", 0, 1, Stage.RUN, 0.3, body=json.dumps(body).encode(), runtime=dict(runtime.handle), ticket_id="a")
    )
    claim.grant = Grant("t.0", 1, claim.id)
    claim.work = Run(context, claim)
    asyncio.get_running_loop().call_later(3.0, hung.gate.set)
    fact = await outcome(claim)
    assert isinstance(fact, RunFinished)
    assert fact.error is not None
    assert (fact.error.kind, fact.error.code, fact.error.retryable) == (Kind.INFRA, "not_ready", True), fact.error
    assert "POLAR_BLOBS" in fact.error.message


class Agent:
    """A harness with a place for skills, which is never started."""

    skills_folder = "skills"
    tools: tuple[Path, ...] = ()

    def __init__(self, agent: AgentSpec) -> None:
        pass

    async def install(self) -> None:
        pass

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        raise NotImplementedError


@pytest.mark.contract
async def test_what_an_outage_holds_up_goes_on_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "RETRIES", 0)
    with s3_server(tmp_path / "s3") as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        blobs = S3Blobs(S3Address(BUCKET, ""))
        given = blobs.put(b"content")
        near = CachedBlobs(blobs, tmp_path / "near")
        server.kill()
        with capture_logs() as lines:
            storing = asyncio.create_task(stored(blobs, "r-1", {"patch": b"changes"}, 120.0))
            fetching = asyncio.create_task(fetch(near, [upload(given)], 120.0))
            await eventually(lambda: len([line for line in lines if line["action"] == "blobs.unreachable"]) >= 2, 60.0)
            await asyncio.to_thread(server.start)
            (ref,) = (await storing).values()
            await fetching
        assert blobs.get(ref) == b"changes"
        server.kill()
        assert near.get(given.ref) == b"content"
        server.start()
