"""Cells with real GPUs: `make test-gpu` on a machine with an NVIDIA GPU and a C compiler."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumers.runtimes.base import Exec, ExecResult, Labels, Runtime
from consumers.runtimes.cell import c_library
from consumers.runtimes.cell.backend import CellBackend
from consumers.runtimes.images.store import ImageStore
from tests.consumers.runtimes.images import making
from tests.consumers.runtimes.images.making import File
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec

pytestmark = [pytest.mark.gpu, pytest.mark.hard]

PROBE = r"""
#include <dlfcn.h>
#include <stdio.h>
/* How many GPUs CUDA sees, and a number that has been in the memory of the first one. */
int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) { puts(dlerror()); return 2; }
    int (*init)(unsigned) = dlsym(cuda, "cuInit");
    int (*count)(int *) = dlsym(cuda, "cuDeviceGetCount");
    int (*get)(int *, int) = dlsym(cuda, "cuDeviceGet");
    int (*retain)(void **, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*use)(void *) = dlsym(cuda, "cuCtxSetCurrent");
    int (*take)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
    int (*fill)(unsigned long long, unsigned, size_t) = dlsym(cuda, "cuMemsetD32_v2");
    int (*fetch)(void *, unsigned long long, size_t) = dlsym(cuda, "cuMemcpyDtoH_v2");
    int devices = 0, device = 0, error = 0;
    void *context = 0;
    unsigned long long memory = 0;
    unsigned got = 0;
    if ((error = init(0)) || (error = count(&devices))) { printf("error %d\n", error); return 3; }
    if ((error = get(&device, 0)) || (error = retain(&context, device)) || (error = use(context)) || (error = take(&memory, 4096))
        || (error = fill(memory, 20261u, 1024)) || (error = fetch(&got, memory + 4092, 4))) { printf("error %d\n", error); return 4; }
    printf("%d %u\n", devices, got);
    return 0;
}
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.c").write_text(PROBE)
    subprocess.run(["cc", "-o", folder / "probe", folder / "probe.c", "-ldl"], check=True, timeout=60)
    return (folder / "probe").read_bytes()


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[CellBackend]:
    library = c_library.of_host()
    assert library is not None
    driver_needs = {
        str(library.folder / name)[1:]: File((library.folder / name).read_bytes(), 0o755)
        for name in ("libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0")
    }
    making.oci_layout(tmp_path / "layout", [making.host_layer(), driver_needs], {})
    images = ImageStore(tmp_path / "images", {"river:1": f"oci:{tmp_path / 'layout'}:latest"}, trusts_tasks=False)
    made = CellBackend(tmp_path / "runtimes", images)
    yield made
    for left in await made.labelled():
        await made.remove(left.handle)


async def run_of(backend: CellBackend, spec: RuntimeSpec, probe: bytes) -> Runtime:
    made = await backend.create(Labels("polar", "task.0", 1, f"claim-{uuid.uuid4().hex}"), spec)
    await made.write_file("probe", probe, 0o755)
    return await backend.attach(made.handle, f"claim-{uuid.uuid4().hex}", spec)


async def probed(runtime: Runtime, *, has_gpus: bool) -> ExecResult:
    return await runtime.exec(Exec("./probe", has_gpus=has_gpus, timeout_s=120))


@pytest.mark.parametrize("image", [None, "river:1"])
async def test_a_program_computes_on_the_gpu_that_it_is_given_and_sees_no_other(
    backend: CellBackend, probe: bytes, image: str | None
) -> None:
    spec = RuntimeSpec(gpus=1, image=image, workdir="/app" if image else None)
    runtime = await run_of(backend, spec, probe)
    ended = await probed(runtime, has_gpus=True)
    assert (ended.exit_code, ended.tail) == (0, "1 20261\n")
    assert (await runtime.exec(Exec("ls /dev/nvidia[0-9]* | wc -l", has_gpus=True))).tail == "1\n"
    listed = await runtime.exec(Exec("nvidia-smi -L", has_gpus=True))
    assert listed.tail.count("GPU 0: ") == len(listed.tail.splitlines()) == 1, listed.tail


@pytest.mark.parametrize("image", [None, "river:1"])
async def test_other_programs_of_the_session_have_no_gpu(backend: CellBackend, probe: bytes, image: str | None) -> None:
    runtime = await run_of(backend, RuntimeSpec(gpus=1, image=image, workdir="/app" if image else None), probe)
    assert (await probed(runtime, has_gpus=False)).exit_code != 0
    assert (await runtime.exec(Exec("ls /dev/nvidia* 2>&1"))).exit_code != 0


async def test_programs_take_turns_on_one_gpu(backend: CellBackend, probe: bytes) -> None:
    count = len(backend.host.gpus.devices)
    spec = RuntimeSpec(gpus=count)
    runtimes = [await run_of(backend, spec, probe) for _ in range(3)]
    command = "date +%s.%N; sleep 0.5; date +%s.%N"
    ended = await asyncio.gather(*(runtime.exec(Exec(command, has_gpus=True)) for runtime in runtimes))
    spans = sorted(tuple(map(float, one.tail.split())) for one in ended)
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))


async def test_more_gpus_than_the_host_has_are_refused(backend: CellBackend) -> None:
    count = len(backend.host.gpus.devices)
    assert count >= 1
    with pytest.raises(InputError, match=rf"runtime\.gpus: this worker's host has {count} GPUs"):
        await backend.create(Labels("polar", "task.0", 1, "claim-1"), RuntimeSpec(gpus=count + 1))
