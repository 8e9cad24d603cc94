"""Who pays for a full disk: the session whose files fill it, or the host. On a disk of 256 MB that the test alone uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from consumers.runtimes.base import STORAGE_EXCEEDED, Exec, Labels, SandboxError
from consumers.runtimes.cell.backend import CellBackend
from consumers.runtimes.cell.runtime import CellRuntime
from tests.small_disks import fill, needs_root, small_disk
from tests.uploading import upload_of
from tests.waiting import eventually
from topics.environment.blobs import FolderBlobs
from topics.types.runtime import RuntimeSpec

pytestmark = [pytest.mark.contract, needs_root]

MB = 1024 * 1024
SPEC = RuntimeSpec(storage_mb=10_000)
FILL = "head -c 1G /dev/zero > big; sleep 1000"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, 256) as disk:
        yield disk


@pytest.fixture
async def backend(disk: Path) -> AsyncIterator[CellBackend]:
    made = CellBackend(disk / "runtimes")
    yield made
    for left in await made.labelled():
        await made.remove(left.handle)


async def initialised(backend: CellBackend, name: str) -> CellRuntime:
    """The runtime of a session whose preparation wrote 20 MB, as its run attaches to it."""
    made = await backend.create(Labels("polar", f"{name}.0", 1, name), SPEC)
    await made.write_file("prepared", bytes(20 * MB))
    await made.write_file(made.home / "given", bytes(2 * MB))
    return await backend.attach(made.handle, f"{name}-run", SPEC)


async def evaluation(backend: CellBackend, run: CellRuntime) -> CellRuntime:
    return await backend.attach(run.handle, f"{run.handle['id']}-evaluation", SPEC, fresh=True)


async def test_a_run_that_fills_the_disk_pays_and_so_does_its_evaluation(backend: CellBackend, tmp_path: Path) -> None:
    run = await initialised(backend, "filler")
    await run.write_file(run.home / "given", bytes(MB))
    ended = await run.exec(Exec(FILL, timeout_s=60))
    assert "the worker's disk is almost full" in ended.exceeded
    with pytest.raises(SandboxError) as failed:
        await (await evaluation(backend, run)).exec(Exec("true"))
    assert failed.value.code == STORAGE_EXCEEDED
    assert list((tmp_path / "runtimes" / "filler" / "views").iterdir()) == [
        tmp_path / "runtimes" / "filler" / "views" / "filler-run"
    ]


async def test_a_program_that_ends_on_the_disk_that_it_filled_pays(backend: CellBackend) -> None:
    run = await initialised(backend, "quick")
    ended = await run.exec(Exec("head -c 1G /dev/zero > big; true", timeout_s=60))
    assert "the worker's disk is almost full" in ended.exceeded


async def test_a_disk_that_the_host_fills_costs_no_session_its_reward(
    backend: CellBackend, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bash = upload_of(Path("/bin/bash"), FolderBlobs(tmp_path_factory.mktemp("blobs")))
    run = await initialised(backend, "innocent")
    judged = await initialised(backend, "judged")
    program = asyncio.create_task(run.exec(Exec("touch began; read < /dev/zero; exit 1", timeout_s=3)))
    await eventually((tmp_path / "runtimes" / "innocent" / "workspace" / "began").exists)
    fill(tmp_path / "logs of the host")
    with pytest.raises(SandboxError, match="make room on this worker's host") as failed:
        await program
    assert failed.value.code == "host_disk_full"
    evaluated = await evaluation(backend, judged)
    for attempt in (
        evaluated.exec(Exec("true")),
        evaluated.upload(bash, "tests/run.sh"),
        evaluated.write_file("a", bytes(MB)),
    ):
        with pytest.raises(SandboxError) as failed:
            await attempt
        assert failed.value.code == "host_disk_full"
    (tmp_path / "logs of the host").unlink()
    await evaluated.upload(bash, "tests/run.sh")
    assert (await evaluated.exec(Exec("cmp /bin/bash tests/run.sh", timeout_s=60))).exit_code == 0


async def test_a_session_within_its_share_is_not_ended_for_its_neighbour(backend: CellBackend) -> None:
    filler, neighbour = await initialised(backend, "filler"), await initialised(backend, "neighbour")
    beside = asyncio.create_task(neighbour.exec(Exec("head -c 10M /dev/zero > mine; sleep 5", timeout_s=60)))
    ended = await filler.exec(
        # Less than the reserve of 12.8 MB is left after a second. The disk is looked at twice a second, and would be full 5 s later.
        Exec(
            "head -c 186M /dev/zero > most; for n in $(seq 1000); do head -c 512K /dev/zero > $n || exit; sleep 0.2; done",
            timeout_s=60,
        )
    )
    assert "the worker's disk is almost full" in ended.exceeded
    await filler.remove()
    assert (await beside).exceeded == ""


@pytest.mark.parametrize("groups", ["as this host has them", "none"])
async def test_a_removed_file_that_a_cell_holds_open_counts(
    backend: CellBackend, groups: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if groups == "none":
        monkeypatch.setattr("consumers.runtimes.cell.cgroup.Group.folders", property(lambda _: []))
    spec = RuntimeSpec(storage_mb=40)
    made = await backend.create(Labels("polar", "hidden.0", 1, "hidden"), spec)
    hidden = 'for n in 3 4 5 6; do eval "exec $n> f$n; rm f$n; head -c 20M /dev/zero >&$n"; done; sleep 1000'
    ended = await made.exec(Exec(hidden, timeout_s=60))
    assert "more than 40 MB, its limit (storage_mb)" in ended.exceeded
