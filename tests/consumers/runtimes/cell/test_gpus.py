"""Who has which GPU, and what its program sees; no GPU is needed. `tests/gpu` uses real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.runtimes.base import SandboxError
from consumers.runtimes.cell import bubblewrap
from consumers.runtimes.cell.gpus import LIBRARIES, PLACE, Gpus, GpuView

FOUR = [f"nvidia{index}" for index in range(4)]


def four(locks: Path) -> Gpus:
    return Gpus(FOUR, locks, ["nvidiactl"])


def cards(view: GpuView) -> set[str]:
    return set(view.devices) - {"/dev/nvidiactl"}


async def test_a_program_without_gpus_has_none_and_takes_no_lock(tmp_path: Path) -> None:
    async with four(tmp_path / "locks").held(0, in_image=False) as view:
        assert (view, view.search({"A": "b"})) == (GpuView(), {"A": "b"})
    assert not (tmp_path / "locks").exists()


@settings(max_examples=25, deadline=None)
@given(counts=st.lists(st.integers(1, 4), min_size=2, max_size=8))
def test_programs_never_share_a_gpu_and_all_get_theirs(
    counts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each `Gpus` stands for another worker of the host."""
    locks = tmp_path_factory.mktemp("locks")
    in_use: set[str] = set()

    async def program(count: int) -> None:
        async with four(locks).held(count, in_image=False) as view:
            mine = cards(view)
            assert len(mine) == count
            assert not mine & in_use
            in_use.update(mine)
            await asyncio.sleep(0)
            in_use.difference_update(mine)

    async def all_of_them() -> None:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for count in counts:
                group.create_task(program(count))

    asyncio.run(all_of_them())


async def test_who_waits_too_long_gets_an_error_and_keeps_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(four(tmp_path).held(3, in_image=False))
        with pytest.raises(SandboxError, match="2 of this host's 4 GPUs weren't free in time") as raised:
            await stack.enter_async_context(four(tmp_path).held(2, in_image=False, limit_s=0))
        assert raised.value.code == "gpus_busy"
        stop = asyncio.Event()
        stop.set()
        with pytest.raises(SandboxError, match="weren't free"):
            await stack.enter_async_context(four(tmp_path).held(2, in_image=False, stop=stop))
        last = await stack.enter_async_context(four(tmp_path).held(1, in_image=False, limit_s=0))
        assert cards(last) == {"/dev/nvidia3"}


HOLDER = """
import asyncio, sys
from pathlib import Path
from consumers.runtimes.cell.gpus import Gpus

async def hold():
    async with Gpus(["nvidia0"], Path(sys.argv[1])).held(1, in_image=False):
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(hold())
"""


@pytest.mark.contract
async def test_a_killed_worker_s_gpus_are_free_again(tmp_path: Path) -> None:
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert await asyncio.to_thread(holder.stdout.readline) == "held\n"
            one = Gpus(["nvidia0"], tmp_path)
            with pytest.raises(SandboxError, match="weren't free"):
                await one.held(1, in_image=False, limit_s=0).__aenter__()
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    async with one.held(1, in_image=False, limit_s=50) as view:
        assert view.devices == ("/dev/nvidia0",)


async def test_an_image_gets_the_driver_s_files_and_this_host_s_programs_find_them_where_they_are(
    tmp_path: Path,
) -> None:
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "libcuda.so.580").write_bytes(b"")
    (driver / LIBRARIES[0]).symlink_to("libcuda.so.580")
    host = Gpus(["nvidia0"], tmp_path / "locks", libraries=driver, program=str(driver / "absent"))
    async with host.held(1, in_image=True) as view:
        (mount,) = view.mounts
        assert (mount["sources"], mount["inside"]) == ([str(driver / "libcuda.so.580")], str(PLACE / LIBRARIES[0]))
        assert view.search({"LD_LIBRARY_PATH": "/own"})["LD_LIBRARY_PATH"] == f"/own:{PLACE}"
    async with host.held(1, in_image=False) as view:
        assert [mount["inside"] for mount in view.mounts] == [str(driver)]
        assert view.search({})["LD_LIBRARY_PATH"] == str(driver)


def test_devices_come_into_a_cell_before_its_dev_becomes_read_only() -> None:
    chosen = bubblewrap.options({}, PurePosixPath("/"), devices=["/dev/nvidia1", "/dev/nvidiactl"])
    text = " ".join(chosen)
    assert (
        "--dev /dev --dev-bind /dev/nvidia1 /dev/nvidia1 --dev-bind /dev/nvidiactl /dev/nvidiactl --remount-ro /dev"
        in text
    )
