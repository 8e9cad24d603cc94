"""Ids that others chose lead out of no folder and name no other topic: hostile ones are refused where they are first used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.runtimes.base import Labels, SandboxError
from consumers.runtimes.process import ProcessBackend, ProcessRuntime
from polar.cli import session_ids
from tests.uploading import upload_of
from topics import events
from topics.environment.blobs import FolderBlobs
from topics.events import SessionOpenRequested, TaskSubmitted
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec
from topics.types.session import Plan
from topics.types.task import TaskRequest

STEPS = st.sampled_from(
    ["..", ".", "", "a", "outside", "runtimes", "workspace", "c-1", "é", "a" * 256, "x\n", "~", "$HOME"]
)
LEADING_OUT = st.one_of(
    st.builds(
        lambda steps, root: root + "/".join(steps), st.lists(STEPS, min_size=2, max_size=6), st.sampled_from(["", "/"])
    ),
    st.sampled_from(
        ["", ".", "..", ".hidden", "-rf", "a\0b", "a\n", "a b", "blob:sha256/../../etc", "/etc/passwd", "a" * 300]
    ),
    st.text(max_size=20).map(lambda text: f"../{text}"),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`runtimes` with one runtime in it, `blobs`, and beside them what must stay as it is."""
    made = tmp_path_factory.mktemp("ids")
    (made / "outside").mkdir()
    (made / "outside" / "file").write_text("untouched")
    (made / "source").write_text("to be uploaded")
    FolderBlobs(made / "blobs").put(b"a blob")
    upload_of(made / "source", FolderBlobs(made / "blobs"))
    asyncio.run(ProcessBackend(made / "runtimes").create(Labels("polar", "t.0", 1, "c-1"), RuntimeSpec()))
    return made


def outside(root: Path) -> dict[str, bytes | None]:
    """All that lies beside the runtime's own folder, by path."""
    own = root / "runtimes" / "c-1"
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
        if own not in (path, *path.parents)
    }


@given(name=LEADING_OUT)
@settings(max_examples=150)
def test_a_name_that_leads_out_touches_nothing_outside(root: Path, name: str) -> None:
    before = outside(root)
    backend = ProcessBackend(root / "runtimes")
    handle = {"backend": "process", "host": "h", "id": name}

    async def misuse() -> None:
        with pytest.raises(SandboxError, match="no runtime has the id"):
            await backend.attach(handle, "c-2", RuntimeSpec())
        with pytest.raises(SandboxError, match="no runtime has the id"):
            await backend.remove(handle)
        with pytest.raises(InputError):
            await backend.kill_claim(name)
        with pytest.raises(InputError):
            await backend.create(Labels("polar", "t.0", 1, name), RuntimeSpec())
        runtime = await backend.attach({**handle, "id": "c-1"}, "c-2", RuntimeSpec())
        assert isinstance(runtime, ProcessRuntime)
        for use in (
            runtime.write_file(name, b"x"),
            runtime.upload(upload_of(root / "source", FolderBlobs(root / "blobs")), name),
        ):
            try:
                await use
            except (InputError, OSError):
                continue
        try:
            assert b"untouched" not in await runtime.read_file(name, 100)
        except (InputError, OSError):
            pass

    asyncio.run(misuse())
    with pytest.raises(ValueError, match="not a blob reference"):
        FolderBlobs(root / "blobs").get(name)
    assert outside(root) == before


def test_a_handle_without_an_id_is_no_runtime(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no runtime has the id"):
        asyncio.run(ProcessBackend(tmp_path).attach({}, "c-1", RuntimeSpec()))


@given(name=LEADING_OUT)
def test_a_name_that_leads_out_is_refused_by_people_and_by_the_coordinator(name: str) -> None:
    task = {"task_id": "t", "instruction": "x", "agent": {"harness": "pi"}}
    for field, body in (
        ("task_id", {**task, "task_id": name}),
        ("output_topic", {**task, "output_topic": name}),
        ("pool", {**task, "runtime": {"pool": name}}),
    ):
        with pytest.raises(ValueError, match=field):
            TaskRequest.model_validate(body)
    with pytest.raises(InputError):
        session_ids.parse(name)
    TaskRequest.model_validate({**task, "output_topic": "mine", "runtime": {"pool": "gpu"}})
    assert session_ids.parse("t.0").task_id == "t"

    def submitted(
        task_id: str = "t", pool: str = "default", output: str | None = None, samples: int = 1
    ) -> TaskSubmitted:
        plan = Plan(pool, 0, 3, 1, 1, 1, "pi", "prefix_merging", b"{}", output, "train", b"{}")
        return TaskSubmitted("f", task_id, samples, "h", plan)

    assert events.flaw(submitted()) is None
    assert events.flaw(submitted(output="mine")) is None
    refused = (
        submitted(task_id=name),
        submitted(pool=name),
        submitted(output=name),
        submitted(samples=0),
        submitted(samples=10**9),
        SessionOpenRequested("f", name, "o-1", 1000),
        SessionOpenRequested("f", "t", "o-1", 1000, num_samples=10**9),
    )
    assert None not in [events.flaw(fact) for fact in refused]
